package io.github.rollserve;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** Copies of arguments that hold others. The error about a null names the argument, and where in it the null is. */
final class Arguments {
    private Arguments() {}

    static <T> List<T> list(String name, T[] values) {
        return list(name, Arrays.asList(Objects.requireNonNull(values, name)));
    }

    static <T> List<T> list(String name, Collection<? extends T> values) {
        List<T> copy = new ArrayList<>();
        for (T value : Objects.requireNonNull(values, name)) {
            copy.add(Objects.requireNonNull(value, name + "[" + copy.size() + "]"));
        }
        return Collections.unmodifiableList(copy);
    }

    /** Keeps the order of the entries. */
    static <V> Map<String, V> map(String name, Map<String, ? extends V> values) {
        Map<String, V> copy = new LinkedHashMap<>();
        Objects.requireNonNull(values, name).forEach((key, value) -> copy.put(
            Objects.requireNonNull(key, name + ".key"), Objects.requireNonNull(value, name + "['" + key + "']")));
        return Collections.unmodifiableMap(copy);
    }
}
