import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.Scanner;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs several of Kafka's command-line tools in one JVM: a line of standard input is the standard input of a tool in Base64, its class and
 * its arguments, separated by tabs. After each command it prints the exit code, the number of bytes of output, and the output.
 */
public class KafkaTools {
    static class Ended extends RuntimeException {
        final int code;

        Ended(int code) {
            super(null, null, false, false);
            this.code = code;
        }
    }

    /** The first exit code of the present command, or -1. A tool may catch Ended and exit again. */
    static int exited;

    static void end(int code) {
        exited = exited < 0 ? code : exited;
        throw new Ended(exited);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        Exit.setExitProcedure((code, message) -> end(code));
        Exit.setHaltProcedure((code, message) -> end(code));
        Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split("\t", -1);
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
            System.setErr(System.out);
            System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(words[0])));
            int code = 0;
            exited = -1;
            try {
                Class.forName(words[1]).getMethod("main", String[].class)
                    .invoke(null, (Object) Arrays.copyOfRange(words, 2, words.length));
            } catch (InvocationTargetException error) {
                if (error.getCause() instanceof Ended ended) {
                    code = ended.code;
                } else {
                    error.getCause().printStackTrace(System.out);
                    code = 70;
                }
            }
            System.out.flush();
            answers.println(code + " " + output.size());
            answers.write(output.toByteArray());
            answers.println();
            answers.flush();
        }
        // Tools may leave threads behind.
        Runtime.getRuntime().halt(0);
    }
}
