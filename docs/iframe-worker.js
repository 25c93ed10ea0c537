// The search of the site runs in a worker, and browsers start none for a page from the disk. There this one takes its
// place: it runs the worker's script in a hidden frame, which has the same names in it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((resolve) => (frame.onload = () => resolve(this.start(frame.contentWindow, url))));
      document.documentElement.append(frame);
    }

    start(inside, url) {
      const load = (src) =>
        new Promise((resolve, reject) => {
          const script = Object.assign(inside.document.createElement("script"), { src, onload: resolve, onerror: reject });
          inside.document.head.append(script);
        });
      inside.IFrameWorker = true; // Material's script asks for it to find its own folder
      inside.importScripts = (...urls) => urls.reduce((done, each) => done.then(() => load(each)), Promise.resolve());
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      return load(url).then(() => inside);
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
  };
}
