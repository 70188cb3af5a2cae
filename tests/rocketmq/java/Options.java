import java.util.HashMap;
import java.util.Map;

/** Options of the form --name value. */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    Options(String[] arguments) {
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            if (!arguments[i].startsWith("--")) {
                throw new IllegalArgumentException("not an option: " + arguments[i]);
            }
            values.put(arguments[i].substring(2), arguments[i + 1]);
        }
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is needed");
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    boolean flag(String name) {
        return Boolean.parseBoolean(values.get(name));
    }

    int number(String name, int otherwise) {
        return values.containsKey(name) ? Integer.parseInt(values.get(name)) : otherwise;
    }
}
