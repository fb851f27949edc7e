import java.lang.reflect.Field;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;

/**
 * Prints the settings of the Apache Kafka on the class path, one per line, separated by tabs: resource, name, type, default, and how a
 * broker setting can change. The program reads Kafka's own definitions by reflection, because their classes moved between releases.
 *
 * java -cp 'LIBS/*' tools/KafkaSettings.java; src/ottla/broker/metadata/kafka_settings.txt is the result for 4.4.0, joined with the
 * broker settings that only 3.9 has.
 */
public class KafkaSettings {
    public static void main(String[] arguments) throws Exception {
        Set<String> dynamic = strings("org.apache.kafka.server.config.DynamicBrokerConfig", "ALL_DYNAMIC_CONFIGS");
        Set<String> perBroker = strings("org.apache.kafka.server.config.DynamicBrokerConfig", "PER_BROKER_CONFIGS");
        ConfigDef broker = definition("org.apache.kafka.server.config.AbstractKafkaConfig", "CONFIG_DEF");
        print("broker", broker == null ? scala("kafka.server.KafkaConfig$", "configDef") : broker, dynamic, perBroker);
        Class<?> log = Class.forName("org.apache.kafka.storage.internals.log.LogConfig");
        print("topic", (ConfigDef) log.getMethod("configDefCopy").invoke(null), Set.of(), Set.of());
        ConfigDef group = definition("org.apache.kafka.coordinator.group.GroupConfig", "CONFIG_DEF");
        if (group != null) print("group", group, Set.of(), Set.of());
    }

    private static void print(String resource, ConfigDef definition, Set<String> dynamic, Set<String> perBroker) {
        for (ConfigDef.ConfigKey key : new TreeMap<>(definition.configKeys()).values()) {
            String mode = !resource.equals("broker") ? "-" : perBroker.contains(key.name) ? "per-broker"
                    : dynamic.contains(key.name) ? "cluster-wide" : "read-only";
            System.out.println(String.join("\t", resource, key.name, key.type.name().toLowerCase(), text(key), mode,
                    key.internalConfig ? "internal" : "public"));
        }
    }

    /** The default as text; "-" for none (null, or a setting that must be given). */
    private static String text(ConfigDef.ConfigKey key) {
        if (key.defaultValue == null || key.defaultValue == ConfigDef.NO_DEFAULT_VALUE) return "-";
        if (key.type == ConfigDef.Type.PASSWORD) return "-";
        return ConfigDef.convertToString(key.defaultValue, key.type);
    }

    private static ConfigDef definition(String owner, String field) throws Exception {
        try {
            Field found = Class.forName(owner).getDeclaredField(field);
            found.setAccessible(true);
            return (ConfigDef) found.get(null);
        } catch (ClassNotFoundException | NoSuchFieldException missing) {
            return null;
        }
    }

    private static ConfigDef scala(String object, String method) throws Exception {
        Class<?> owner = Class.forName(object);
        return (ConfigDef) owner.getMethod(method).invoke(owner.getField("MODULE$").get(null));
    }

    @SuppressWarnings("unchecked")
    private static Set<String> strings(String owner, String field) throws Exception {
        try {
            Field found = Class.forName(owner).getDeclaredField(field);
            found.setAccessible(true);
            return (Set<String>) found.get(null);
        } catch (ClassNotFoundException | NoSuchFieldException missing) {
            return Set.of();
        }
    }
}
