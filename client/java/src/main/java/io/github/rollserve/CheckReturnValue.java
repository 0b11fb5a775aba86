package io.github.rollserve;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Marks immutable classes, and methods that return a changed copy. A call whose result is ignored does nothing, as in
 * {@code options.withSeed(7);}.
 *
 * <p>Error Prone knows the annotation by its simple name, in any package, and reports such calls as errors
 * ({@code CheckReturnValue}); inspections of IntelliJ IDEA take its name, {@code io.github.rollserve.CheckReturnValue}.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target({ElementType.TYPE, ElementType.METHOD})
public @interface CheckReturnValue {}
