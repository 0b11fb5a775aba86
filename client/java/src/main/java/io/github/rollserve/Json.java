package io.github.rollserve;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonIOException;
import com.google.gson.JsonSyntaxException;
import com.google.gson.ToNumberPolicy;
import java.util.Map;
import java.util.Objects;

/** JSON objects, in which arguments of environments and agents travel. */
final class Json {
    private static final Gson GSON = new GsonBuilder()
        .serializeNulls()
        .disableHtmlEscaping()
        .setObjectToNumberStrategy(ToNumberPolicy.LONG_OR_DOUBLE)
        .create();

    private Json() {}

    /** Writes an object; an empty text stands for an empty one. */
    static String object(String field, Map<String, ?> values) {
        return Objects.requireNonNull(values, field).isEmpty() ? "" : value(field, values);
    }

    static String value(String field, Object value) {
        try {
            return GSON.toJson(value);
        } catch (IllegalArgumentException | UnsupportedOperationException | JsonIOException error) {
            throw Errors.invalid(field, "values that JSON can hold", error.getMessage());
        }
    }

    /** Reads an object. */
    @SuppressWarnings("unchecked") // an object is read as a map with texts as keys
    static Map<String, Object> read(String field, String text) {
        try {
            return text.isEmpty() ? Map.of() : GSON.fromJson(text, Map.class);
        } catch (JsonSyntaxException error) {
            throw Errors.malformed(field, "a JSON object", error.getMessage());
        }
    }

    static Object readValue(String field, String text) {
        try {
            return GSON.fromJson(text, Object.class);
        } catch (JsonSyntaxException error) {
            throw Errors.malformed(field, "a JSON value", error.getMessage());
        }
    }
}
