package io.github.rollserve;

import java.lang.reflect.RecordComponent;
import java.util.Arrays;

/** Equality of records that have arrays among their components, which count by their elements. */
final class Records {
    private Records() {}

    static boolean equal(Record record, Object other) {
        return other != null && record.getClass() == other.getClass()
            && Arrays.deepEquals(values(record), values((Record) other));
    }

    static int hash(Record record) {
        return Arrays.deepHashCode(values(record));
    }

    private static Object[] values(Record record) {
        RecordComponent[] components = record.getClass().getRecordComponents();
        Object[] values = new Object[components.length];
        try {
            for (int i = 0; i < values.length; i++) {
                values[i] = components[i].getAccessor().invoke(record);
            }
        } catch (ReflectiveOperationException impossible) {
            throw new IllegalStateException(impossible); // accessors of public records are public
        }
        return values;
    }
}
