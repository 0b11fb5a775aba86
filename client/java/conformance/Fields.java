import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.BiFunction;
import java.util.function.Function;

/**
 * The fields of a JSON object.
 *
 * @param values the values by name
 */
record Fields(Map<String, Object> values) {
    /** Returns the fields of an object that Gson has read; none for null. */
    static Fields of(Object object) {
        Map<String, Object> values = new TreeMap<>();
        if (object != null) {
            ((Map<?, ?>) object).forEach((name, value) -> values.put((String) name, value));
        }
        return new Fields(values);
    }

    boolean has(String name) {
        return values.get(name) != null;
    }

    Object value(String name) {
        return values.get(name);
    }

    String text(String name) {
        return (String) values.get(name);
    }

    long integer(String name) {
        return ((Number) values.get(name)).longValue();
    }

    double number(String name) {
        return ((Number) values.get(name)).doubleValue();
    }

    double numberOr(String name, double absent) {
        return has(name) ? number(name) : absent;
    }

    boolean flag(String name) {
        return Boolean.TRUE.equals(values.get(name));
    }

    /** Returns the fields of an object within this one; none if it is absent. */
    Fields fields(String name) {
        return of(values.get(name));
    }

    List<Fields> list(String name) {
        return elements(name).stream().map(Fields::of).toList();
    }

    List<String> texts(String name) {
        return elements(name).stream().map(String.class::cast).toList();
    }

    double[] numbers(String name) {
        return elements(name).stream().mapToDouble(each -> ((Number) each).doubleValue()).toArray();
    }

    /** Returns what a function makes of the objects of a list; empty for null. */
    <T> List<Optional<T>> optionals(String name, Function<Fields, T> function) {
        return elements(name).stream()
            .map(each -> Optional.ofNullable(each).map(Fields::of).map(function))
            .toList();
    }

    List<Object> elements(String name) {
        return has(name) ? new ArrayList<>((List<?>) values.get(name)) : List.of();
    }

    /** Returns options with one more set if there is a field for it, otherwise the options as they are. */
    <T> T set(T options, String name, BiFunction<T, String, T> setter) {
        return has(name) ? setter.apply(options, name) : options;
    }
}
