// KafkaJS on secured listeners. A line of standard input is a task, a line of standard output its result, both JSON: see secured_clients.py.
import { readFileSync } from "node:fs"
import { createInterface } from "node:readline"
import kafkajs from "kafkajs"

const { Kafka, logLevel } = kafkajs

function sasl({ mechanism, username, password, token }) {
  if (!mechanism) return undefined
  if (mechanism === "OAUTHBEARER") return { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: token }) }
  return { mechanism: mechanism.toLowerCase(), username, password }
}

function ssl({ protocol, ca, certificate, key }) {
  if (!protocol.endsWith("SSL")) return false
  const own = certificate ? { cert: readFileSync(certificate), key: readFileSync(key) } : {}
  return { ca: [readFileSync(ca)], ...own }
}

async function run(task) {
  const retry = { retries: 0 }
  const kafka = new Kafka({
    brokers: [task.bootstrap], clientId: "node", logLevel: logLevel.NOTHING, ssl: ssl(task), sasl: sasl(task), retry,
  })
  const producer = kafka.producer({ retry })
  try {
    await producer.connect()
    for (let number = 0; number < task.count; number++) {
      await producer.send({ topic: task.topic, messages: [{ value: `record ${number}` }] })
    }
  } finally {
    await producer.disconnect()
  }
  // Without a retry it ends when the coordinator of the first group is not ready.
  const consumer = kafka.consumer({ groupId: task.group, maxWaitTimeInMs: 200, retry: { retries: 5, initialRetryTime: 100 } })
  const values = []
  try {
    await consumer.connect()
    await consumer.subscribe({ topics: [task.topic], fromBeginning: true })
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
      consumer.run({
        eachMessage: async ({ message }) => {
          values.push(message.value.toString())
          if (values.length === task.count) resolve()
        },
      }).catch(reject)
    })
  } finally {
    await consumer.disconnect()
  }
  return values
}

for await (const line of createInterface({ input: process.stdin })) {
  const result = { values: [], error: "" }
  try {
    result.values = await run(JSON.parse(line))
  } catch (error) {
    result.error = `${error.name}: ${error.type ?? ""} ${error.message}`
  }
  process.stdout.write(JSON.stringify(result) + "\n")
}
