import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group that is Apache Kafka's own consumer, of the classic protocol or (group.protocol=consumer) the new one. Tells what it
 * does as `members/member_output.py` describes, and leaves on SIGTERM.
 *
 *   JavaMember BOOTSTRAP GROUP TOPIC SETTINGS
 */
public class JavaMember {
    private static volatile boolean leaving = false;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", "25");
        if (!arguments[3].contains("group.protocol")) {
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        }
        // A flat object of strings and numbers.
        Matcher pairs = Pattern.compile("\"([^\"]+)\":\\s*\"?([^\",}]+)").matcher(arguments[3]);
        while (pairs.find()) {
            settings.put(pairs.group(1), pairs.group(2).trim());
        }
        Thread main = Thread.currentThread();
        var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            leaving = true;
            consumer.wakeup();
            try {
                main.join(15_000);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
            // The virtual machine would end with 143.
            Runtime.getRuntime().halt(main.isAlive() ? 1 : 0);
        }));
        consumer.subscribe(List.of(arguments[2]), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                System.out.println("{\"assigned\": " + numbers(partitions) + "}");
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                System.out.println("{\"revoked\": " + numbers(partitions) + "}");
            }
        });
        try (consumer) {
            while (!leaving) {
                turn(consumer);
            }
        } catch (WakeupException asked) {
            // Leaving the block has closed the consumer.
        }
    }

    private static void turn(KafkaConsumer<byte[], byte[]> consumer) {
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (var record : consumer.poll(Duration.ofMillis(200))) {
            System.out.println("{\"read\": [" + record.partition() + ", " + record.offset() + "]}");
            ends.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        if (ends.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(ends);
        } catch (WakeupException asked) {
            throw asked;
        } catch (KafkaException refused) {
            System.out.println("{\"refused\": \"" + refused.getClass().getSimpleName() + "\"}");
            return;
        }
        System.out.println(ends.entrySet().stream().map(end -> "[" + end.getKey().partition() + ", " + end.getValue().offset() + "]")
            .collect(Collectors.joining(", ", "{\"committed\": [", "]}")));
    }

    private static List<Integer> numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::partition).toList();
    }
}
