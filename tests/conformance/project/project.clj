(defproject conformance "0.0.1"
  :resource-paths ["_resources"]
  :target-path "_build"
  :min-lein-version "2.0.0"
  :dependencies [[org.apache.storm/storm-core "2.8.3"]
                 [org.apache.storm/flux-core "2.8.3"]])
