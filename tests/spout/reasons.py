"""Why a test of FakeKafka cannot run on a real broker; what more than one test gives as its reason."""

NO_KAFKA_YET = "settings that make no sense are found before any Kafka is asked"
OTHERS_NEED_IT = "all tests share one broker, which must not go away"
NO_ELECTION = "a log is cut by an unclean election alone, and that takes several brokers"
CLEANER = "the cleaner itself decides which records it removes, and when"
CLIENT_TIMER = "the client's own timer runs in real time"
ACKS_DECIDE = "chunks go by acks, so they have one guarantee"
