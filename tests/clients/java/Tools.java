import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools one after the other in one process, since starting Java costs more than most of them do.
 *
 * <p>Each line of standard input is a JSON object: the class of the tool, its arguments and its standard input. Each is
 * answered by a line on standard output: the exit status, and what the tool wrote to standard output and error. A tool that
 * ends the process ends only its run: Kafka's tools exit by Exit, which throws here. Shutdown hooks run after the tool.
 */
public final class Tools {
    private static final class Exited extends RuntimeException {
        Exited(int status) {
            super("exit status " + status, null, false, false);
        }
    }

    /** Passes all it is given to the stream of the tool that runs: Scala's console keeps the first System.out it finds. */
    private static final class ToCurrentTool extends OutputStream {
        private volatile OutputStream current = OutputStream.nullOutputStream();

        @Override
        public void write(int value) throws IOException {
            current.write(value);
        }

        @Override
        public void write(byte[] bytes, int start, int length) throws IOException {
            current.write(bytes, start, length);
        }
    }

    private static final ToCurrentTool written = new ToCurrentTool();

    private static final AtomicReference<Integer> first = new AtomicReference<>();

    private static final List<Runnable> hooks = new ArrayList<>();

    private record Result(int status, String output) {
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        // The logging library keeps the stream that it finds first.
        System.setOut(System.err);
        org.slf4j.LoggerFactory.getLogger(Tools.class);
        PrintStream both = new PrintStream(written, true, StandardCharsets.UTF_8);
        System.setOut(both);
        System.setErr(both);
        Exit.Procedure exit = (status, message) -> {
            // A tool may catch what is thrown here and exit again: its first word counts.
            first.compareAndSet(null, status);
            throw new Exited(status);
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = json.readTree(line);
            List<String> words = new ArrayList<>();
            request.get("arguments").forEach(word -> words.add(word.asText()));
            Result result = run(request.get("tool").asText(), words, request.get("input").asText());
            answers.println(json.writeValueAsString(Map.of("status", result.status, "output", result.output)));
        }
    }

    private static Result run(String tool, List<String> words, String input) {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        written.current = output;
        int status = 0;
        first.set(null);
        hooks.clear();
        System.setIn(new ByteArrayInputStream(input.getBytes(StandardCharsets.UTF_8)));
        try {
            Object parameters = words.toArray(new String[0]);
            Class.forName(tool).getMethod("main", String[].class).invoke(null, parameters);
        } catch (InvocationTargetException thrown) {
            if (first.get() == null) {
                thrown.getCause().printStackTrace();
                status = 1;
            }
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            status = 1;
        } finally {
            hooks.forEach(Runnable::run);
        }
        return new Result(first.get() == null ? status : first.get(), output.toString(StandardCharsets.UTF_8));
    }
}
