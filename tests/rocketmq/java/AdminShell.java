import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * mqadmin without the start of a JVM for each command: reads a command a line, its arguments separated by tabs, and
 * writes how many bytes it printed, then these. Prints "started" first; ends with its input.
 */
public final class AdminShell {
    private AdminShell() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        Thread commands = Thread.currentThread();
        Thread nudger = new Thread(() -> nudge(commands));
        nudger.setDaemon(true);
        nudger.start();
        answers.println("started");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream out = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(out);
            System.setErr(out);
            forgetCommands();
            MQAdminStartup.main0(line.split("\t"), null);
            byte[] text = printed.toByteArray(); // at once: threads that the command leaves behind may print as well
            answers.println(text.length);
            answers.write(text);
            answers.flush();
        }
        System.exit(0);
    }

    /** Some commands keep a producer that they have shut down: each gets its own. The list's name depends on the release. */
    private static void forgetCommands() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    /**
     * A client's shutdown now and then waits three seconds for a thread that only polls. Before a shutdown that thread must
     * be left alone: it may be sending a heartbeat, and would close the connection.
     */
    private static void nudge(Thread commands) {
        while (true) {
            for (StackTraceElement frame : commands.getStackTrace()) {
                if (frame.getClassName().endsWith(".ServiceThread") && frame.getMethodName().equals("shutdown")) {
                    for (Thread thread : Thread.getAllStackTraces().keySet()) {
                        if (thread.getName().equals("NettyEventExecutor")) {
                            thread.interrupt();
                        }
                    }
                }
            }
            try {
                Thread.sleep(100);
            } catch (InterruptedException error) {
                return;
            }
        }
    }
}
