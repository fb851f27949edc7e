// A member of a group that is KafkaJS. Tells what it does as members/member_output.py describes, and leaves on SIGTERM.
// The assignors that KafkaJS comes with have names of their own, so this one is given the range assignor of the others.
//
//   node member.mjs BOOTSTRAP GROUP TOPIC SETTINGS
import kafkajs from "kafkajs"

const { Kafka, AssignerProtocol, logLevel } = kafkajs
const [bootstrap, groupId, topic, text] = process.argv.slice(2)
const settings = JSON.parse(text)
const tell = (what, content) => process.stdout.write(JSON.stringify({ [what]: content }) + "\n")

const range = ({ cluster }) => ({
  name: "range",
  version: 0,
  protocol: ({ topics }) => ({ name: "range", metadata: AssignerProtocol.MemberMetadata.encode({ version: 0, topics, userData: Buffer.alloc(0) }) }),
  async assign({ members }) {
    const ids = members.map(({ memberId }) => memberId).sort()
    await cluster.addTargetTopic(topic)
    const partitions = cluster.findTopicPartitionMetadata(topic).map(({ partitionId }) => partitionId).sort((a, b) => a - b)
    let begin = 0
    return ids.map((memberId, number) => {
      const count = Math.floor(partitions.length / ids.length) + (number < partitions.length % ids.length ? 1 : 0)
      const part = partitions.slice(begin, begin + count)
      begin += count
      return { memberId, memberAssignment: AssignerProtocol.MemberAssignment.encode({ version: 0, assignment: { [topic]: part }, userData: Buffer.alloc(0) }) }
    })
  },
})

const kafka = new Kafka({ brokers: [bootstrap], clientId: "node", logLevel: logLevel.ERROR })
const consumer = kafka.consumer({
  groupId,
  partitionAssigners: [range],
  sessionTimeout: settings["session.timeout.ms"],
  heartbeatInterval: settings["heartbeat.interval.ms"],
  rebalanceTimeout: 10000,
  maxWaitTimeInMs: 200,
  retry: { initialRetryTime: 100, retries: 30 },
})
let owned = []
const giveUp = () => {
  if (owned.length) tell("revoked", owned)
  owned = []
}
consumer.on(consumer.events.REBALANCING, giveUp)
consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
  giveUp()
  owned = payload.memberAssignment[topic] ?? []
  tell("assigned", owned)
})
await consumer.connect()
await consumer.subscribe({ topics: [topic], fromBeginning: true })
process.on("SIGTERM", async () => {
  await consumer.disconnect()
  process.exit(0)
})
await consumer.run({
  autoCommit: false,
  eachBatchAutoResolve: false,
  eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
    if (!isRunning() || isStale() || batch.messages.length === 0) return
    for (const { offset } of batch.messages) {
      tell("read", [batch.partition, Number(offset)])
      resolveOffset(offset)
    }
    const end = Number(batch.lastOffset()) + 1
    try {
      await consumer.commitOffsets([{ topic, partition: batch.partition, offset: String(end) }])
      tell("committed", [[batch.partition, end]])
    } catch (error) {
      tell("refused", error.message)
      throw error
    }
    await heartbeat()
  },
})
