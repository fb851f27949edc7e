import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import java.util.Scanner;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Apache Kafka's Java client on secured listeners. A task is a line: the path of a properties file, topic, group and count. Its result is a
 * line: classes and messages of the error and its causes in hexadecimal, or "-", and the values that were read, joined by commas.
 */
public class SecuredClient {
    public static void main(String[] arguments) throws Exception {
        PrintStream results = System.out;
        Scanner tasks = new Scanner(System.in, StandardCharsets.UTF_8);
        while (tasks.hasNextLine()) {
            String[] task = tasks.nextLine().split("\t");
            List<String> values = new ArrayList<>();
            String error = "-";
            try {
                run(Path.of(task[0]), task[1], task[2], Integer.parseInt(task[3]), values);
            } catch (Exception failed) {
                StringBuilder text = new StringBuilder();
                for (Throwable why = failed; why != null; why = why.getCause()) {
                    text.append(why.getClass().getSimpleName()).append(": ").append(why.getMessage()).append("; ");
                }
                error = HexFormat.of().formatHex(text.toString().getBytes(StandardCharsets.UTF_8));
            }
            results.println(error + "\t" + String.join(",", values));
            results.flush();
        }
    }

    private static void run(Path properties, String topic, String group, int count, List<String> values) throws Exception {
        Properties settings = new Properties();
        try (var reader = Files.newBufferedReader(properties)) {
            settings.load(reader);
        }
        settings.put("max.block.ms", "15000");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, "record " + number)).get();
            }
        }
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("fetch.max.wait.ms", "200");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(Set.of(topic));
            long deadline = System.currentTimeMillis() + 20_000;
            while (values.size() < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    values.add(record.value());
                }
            }
            consumer.commitSync();
        }
    }
}
