// KafkaJS against the server under test: makes the topic and writes COUNT records, plain and with gzip; prints what it found.
// Its consumer only works in a group, so what it wrote is read by another client.
//
//   node client.mjs BOOTSTRAP TOPIC COUNT
import kafkajs from "kafkajs"

const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = kafkajs
const [bootstrap, topic, count] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [bootstrap], clientId: "node", logLevel: logLevel.ERROR })

const check = (holds, what) => {
  if (!holds) throw new Error(`does not hold: ${what}`)
}

const admin = kafka.admin()
await admin.connect()
const configEntries = [{ name: "retention.ms", value: "3600000" }]
check(await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1, configEntries }] }), "the topic is new")
check(!(await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1 }] })), "and is made once")
await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })

for (const [name, compression] of [["none", CompressionTypes.None], ["gzip", CompressionTypes.GZIP]]) {
  const producer = kafka.producer({ idempotent: name === "gzip" })
  await producer.connect()
  const messages = Array.from({ length: Number(count) }, (_, number) => ({
    partition: 0, key: number % 3 ? name : null, value: `${name} ${number} `.repeat(5), headers: { number: String(number) },
  }))
  const [answer] = await producer.send({ topic, messages, compression, acks: -1 })
  check(answer.errorCode === 0, "the records are written")
  await producer.disconnect()
}

const offsets = await admin.fetchTopicOffsets(topic)
check(offsets.length === 3, "it has three partitions")
check(offsets.find(({ partition }) => partition === 0).high === String(2 * Number(count)), "and an end behind the last record")
const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic, configNames: ["retention.ms"] }]
const described = await admin.describeConfigs({ resources, includeSynonyms: false })
check(described.resources[0].configEntries[0].configValue === "3600000", "and its setting")
await admin.alterConfigs({ resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries: [{ name: "retention.ms", value: "7200000" }] }] })
await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "1" }] })
check((await admin.fetchTopicOffsets(topic)).find(({ partition }) => partition === 0).low === "1", "records are deleted")
check((await admin.describeCluster()).brokers.length > 0, "there is a broker")
await admin.disconnect()
console.log("fine")
