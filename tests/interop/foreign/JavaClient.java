import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache Kafka's own client against the server under test.
 *
 *   write BOOTSTRAP TOPIC COUNT   makes the topic, writes COUNT records with each codec, idempotently; prints their offsets by codec
 *   read BOOTSTRAP TOPIC COUNT    reads partition 0 by assignment; a line for each record
 *   admin BOOTSTRAP TOPIC         a round through the admin interface; prints "fine" or fails
 */
public class JavaClient {
    private static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "write" -> write(arguments[1], arguments[2], Integer.parseInt(arguments[3]));
            case "read" -> read(arguments[1], arguments[2], Integer.parseInt(arguments[3]));
            case "admin" -> admin(arguments[1], arguments[2]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static Properties settings(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException("does not hold: " + what);
        }
    }

    private static void write(String bootstrap, String topic, int count) throws Exception {
        try (Admin admin = Admin.create(settings(bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, Optional.of(1), Optional.empty()))).all().get();
        }
        for (String codec : CODECS) {
            Properties settings = settings(bootstrap);
            settings.put("compression.type", codec);
            settings.put("linger.ms", "20");
            settings.put("batch.size", "100000");
            settings.put("max.request.size", "4000000");
            List<Future<RecordMetadata>> answers = new ArrayList<>();
            try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                for (int number = 0; number < count; number++) {
                    byte[] key = number % 3 == 0 ? null : ("key " + number % 7).getBytes(StandardCharsets.UTF_8);
                    byte[] value = number % 5 == 4 ? null : (codec + " value " + number).repeat(5).getBytes(StandardCharsets.UTF_8);
                    var record = new ProducerRecord<>(topic, 0, System.currentTimeMillis(), key, value);
                    record.headers().add("number", String.valueOf(number).getBytes(StandardCharsets.UTF_8)).add("null", null);
                    answers.add(producer.send(record));
                }
                producer.flush();
                System.out.println(codec + " " + answers.get(0).get().offset() + " " + answers.get(count - 1).get().offset());
                if (codec.equals("none")) {
                    var large = new ProducerRecord<byte[], byte[]>(topic, 0, null, new byte[2_000_000]);
                    try {
                        producer.send(large).get();
                        check(false, "a record above max.message.bytes is refused");
                    } catch (ExecutionException error) {
                        check(error.getCause() instanceof RecordTooLargeException, "it is refused for its size: " + error.getCause());
                    }
                }
            }
        }
    }

    private static void read(String bootstrap, String topic, int count) {
        try (var consumer = new KafkaConsumer<>(settings(bootstrap), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(Set.of(partition));
            consumer.seekToBeginning(Set.of(partition));
            check(consumer.endOffsets(Set.of(partition)).get(partition) >= count, "the end is where the writer left it");
            int seen = 0;
            long deadline = System.currentTimeMillis() + 30_000;
            while (seen < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    StringBuilder headers = new StringBuilder();
                    for (Header header : record.headers()) {
                        headers.append(' ').append(hex(header.key().getBytes(StandardCharsets.UTF_8))).append('=').append(hex(header.value()));
                    }
                    System.out.println(record.offset() + " " + record.timestamp() + " " + hex(record.key()) + " " + hex(record.value()) + headers);
                    seen++;
                }
            }
            var byTime = consumer.offsetsForTimes(Map.of(partition, 0L)).get(partition);
            check(byTime != null && byTime.offset() == 0, "the first record is found by time");
        }
    }

    private static String hex(byte[] data) {
        return data == null ? "null" : "x" + HexFormat.of().formatHex(data);
    }

    private static void admin(String bootstrap, String topic) throws Exception {
        try (Admin admin = Admin.create(settings(bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "3600000")))).all().get();
            try {
                admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get();
                check(false, "a topic is made once");
            } catch (ExecutionException error) {
                check(error.getCause() instanceof TopicExistsException, "and the second time it exists: " + error.getCause());
            }
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            check(described.partitions().size() == 3, "it has grown");
            check(admin.listTopics().names().get().contains(topic), "it is listed");
            check(!admin.describeCluster().nodes().get().isEmpty(), "there is a broker");
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            var change = new AlterConfigOp(new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            check(config.get("retention.ms").value().equals("7200000"), "its setting has changed");
            TopicPartition partition = new TopicPartition(topic, 1);
            try (var producer = new KafkaProducer<>(settings(bootstrap), new ByteArraySerializer(), new ByteArraySerializer())) {
                for (int number = 0; number < 10; number++) {
                    producer.send(new ProducerRecord<>(topic, 1, null, new byte[100]));
                }
                producer.flush();
            }
            var producers = admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers();
            check(producers.size() == 1 && producers.get(0).lastSequence() == 9, "its producer is known");
            check(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4))).all().get() == null, "records are deleted");
            for (var want : Map.of(OffsetSpec.earliest(), 4L, OffsetSpec.latest(), 10L, OffsetSpec.earliestLocal(), 4L).entrySet()) {
                long offset = admin.listOffsets(Map.of(partition, want.getKey())).all().get().get(partition).offset();
                check(offset == want.getValue(), want.getKey() + " is " + want.getValue() + ", not " + offset);
            }
            check(!admin.describeLogDirs(List.of(1)).allDescriptions().get().isEmpty(), "the log directory is described");
            admin.deleteTopics(List.of(topic)).all().get();
            System.out.println("fine");
        }
    }
}
