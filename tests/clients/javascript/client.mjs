// KafkaJS: an administrator creates a topic, an idempotent producer fills it, a group reads it.
//
//   node client.mjs <kafkajs directory> <bootstrap servers> <topic> <records> <records before the pause>
//
// After the records before the pause it prints "paused" and waits for a line, so that a broker can be killed. In the end it
// prints the values that the group was given, in order of their offsets, as JSON.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [modules, bootstrap, topic, recordCount, pauseAfter] = process.argv.slice(2);
const { Kafka, logLevel } = createRequire(`${modules}/`)("kafkajs");
const count = Number(recordCount);
const retry = { retries: 60, initialRetryTime: 100, maxRetryTime: 2000 };
const kafka = new Kafka({ brokers: bootstrap.split(","), logLevel: logLevel.NOTHING, retry, requestTimeout: 60000 });
const batch = 100;

const admin = kafka.admin();
await admin.connect();
const config = [{ name: "min.insync.replicas", value: "2" }];
await admin.createTopics({
  waitForLeaders: true,
  timeout: 60000,
  topics: [{ topic, numPartitions: 1, replicationFactor: 3, configEntries: config }],
});
await admin.disconnect();

const values = new Map();
let done;
const finished = new Promise((resolve) => (done = resolve));
const consumer = kafka.consumer({ groupId: `${topic}-readers`, sessionTimeout: 30000 });
await consumer.connect();
await consumer.subscribe({ topics: [topic], fromBeginning: true });
await consumer.run({
  eachMessage: async ({ message }) => {
    values.set(message.offset, message.value.toString());
    if (values.size === count) done();
  },
});

const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
await producer.connect();
for (let first = 0; first < count; first += batch) {
  const messages = Array.from({ length: batch }, (_, number) => ({ value: String(first + number) }));
  await producer.send({ topic, acks: -1, messages });
  if (first + batch === Number(pauseAfter)) {
    console.log("paused");
    const lines = createInterface({ input: process.stdin });
    await new Promise((resolve) => lines.once("line", resolve));
    lines.close();
  }
}
await finished;
await producer.disconnect();
await consumer.disconnect();
const inOrder = [...values].sort(([one], [other]) => Number(BigInt(one) - BigInt(other)));
console.log(JSON.stringify(inOrder.map(([, value]) => value)));
process.exit(0);
