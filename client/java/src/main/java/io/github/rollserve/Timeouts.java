package io.github.rollserve;

import java.time.Duration;
import java.util.Objects;

/** Checks of times that a caller gives. */
final class Timeouts {
    /** More than any call takes, and far below what 64 bits of nanoseconds hold. */
    private static final Duration MAX = Duration.ofDays(36_500);

    private Timeouts() {}

    static Duration positive(String field, Duration time) {
        if (Objects.requireNonNull(time, "time").isNegative() || time.isZero()) {
            throw Errors.invalid(field, "a positive time", time);
        }
        return time.compareTo(MAX) > 0 ? MAX : time;
    }

    static Duration from(com.google.protobuf.Duration message) {
        return Duration.ofSeconds(message.getSeconds(), message.getNanos());
    }
}
