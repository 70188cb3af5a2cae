import java.io.FileWriter;
import java.io.PrintWriter;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.jar.JarFile;
import org.apache.rocketmq.test.base.BaseConf;
import org.junit.Test;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * `list JAR` prints the test classes of a jar that use a cluster, without those of the proxy, which start the proxy and
 * brokers in their JVM. `run REPORT DONE CLASS...` runs the classes one after the other, without the tests named in the
 * file DONE. It writes a line to REPORT at each step, with its fields separated by tabs.
 */
public final class RunTests {
    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("list")) {
            list(arguments[1]);
        } else {
            Set<String> done = new HashSet<>(Files.readAllLines(Path.of(arguments[2])));
            run(arguments[1], done, List.of(arguments).subList(3, arguments.length));
        }
        System.exit(0); // threads of the tests' clients may still run
    }

    private static void list(String jar) throws Exception {
        try (JarFile file = new JarFile(jar)) {
            List<String> found = new ArrayList<>();
            file.stream().map(entry -> entry.getName()).filter(name -> name.matches("(?!.*/grpc/)[^$]*(IT|Test)\\.class")).forEach(
                name -> found.add(name.replace('/', '.').substring(0, name.length() - ".class".length())));
            for (String name : found) {
                Class<?> type = Class.forName(name, false, RunTests.class.getClassLoader());
                boolean tests = Arrays.stream(type.getMethods()).anyMatch(method -> method.isAnnotationPresent(Test.class));
                if (tests && BaseConf.class.isAssignableFrom(type) && !Modifier.isAbstract(type.getModifiers())) {
                    System.out.println(name);
                }
            }
        }
    }

    private static void run(String report, Set<String> done, List<String> classes) throws Exception {
        PrintWriter out = new PrintWriter(new FileWriter(report, true), true);
        Filter left = new Filter() {
            @Override
            public boolean shouldRun(Description test) {
                return test.isSuite() || !done.contains(name(test));
            }

            @Override
            public String describe() {
                return "not done";
            }
        };
        for (String name : classes) {
            Request request = Request.aClass(Class.forName(name));
            plan(out, request.getRunner().getDescription());
            JUnitCore core = new JUnitCore();
            core.addListener(new Reporter(out));
            core.run(done.isEmpty() ? request : request.filterWith(left));
        }
        out.println("end");
    }

    private static void plan(PrintWriter out, Description description) {
        if (description.isSuite()) {
            description.getChildren().forEach(child -> plan(out, child));
        } else {
            out.println("planned\t" + name(description));
        }
    }

    private static String name(Description test) {
        String full = test.getClassName();
        return full.substring(full.lastIndexOf('.') + 1) + "." + test.getMethodName();
    }

    private static final class Reporter extends RunListener {
        private final PrintWriter out;
        private String failed = "";

        Reporter(PrintWriter out) {
            this.out = out;
        }

        @Override
        public void testStarted(Description test) {
            failed = "";
            out.println("started\t" + name(test));
        }

        @Override
        public void testFailure(Failure failure) {
            String why = String.valueOf(failure.getException()).replaceAll("\\s+", " ");
            if (failed.isEmpty()) { // a later failure of @After follows from the first
                failed = why.substring(0, Math.min(400, why.length()));
            }
            if (failure.getDescription().isSuite()) {
                out.println("broken\t" + failure.getDescription().getClassName() + "\t" + why);
            }
            failure.getException().printStackTrace();
        }

        @Override
        public void testAssumptionFailure(Failure failure) {
            failed = "an assumption does not hold: " + failure.getMessage();
        }

        @Override
        public void testFinished(Description test) {
            out.println((failed.isEmpty() ? "passed\t" : "failed\t") + name(test) + "\t" + failed);
        }

        @Override
        public void testIgnored(Description test) {
            out.println("ignored\t" + name(test));
        }
    }
}
