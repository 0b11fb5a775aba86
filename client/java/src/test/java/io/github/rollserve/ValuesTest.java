package io.github.rollserve;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Executable;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Parameter;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Test;

/** Equality of values, and arguments that are null. */
class ValuesTest {
    private static final Sampler SAMPLER = Sampler.connect("127.0.0.1:1");
    private static final Tensor ONE = Tensor.scalar(1);
    /** The classes that users call with arguments, each with an object unless its methods are static. */
    private static final List<Object> OBJECTS = List.of(
        SAMPLER, SAMPLER.multiAgent(), new ConnectionOptions(), new SamplingOptions(), new FragmentOptions(),
        new EvaluationOptions(), new EnvSpec("a"), new EnvChange(),
        new MlpAgent(Parameters.NONE, new MlpAgent.Categorical()), new OnnxAgent(new byte[0], OnnxAgent.Head.ACTIONS),
        new PythonAgent("a"), new ConstantAgent(Columns.plain(ONE)), new RandomAgent(), new AgentChange(Map.of()),
        new Policies(Map.of()), new PolicyMap(), new PolicyChoice("a"), Parameters.NONE, Columns.plain(ONE), ONE,
        new Wrapper("a"), new Task("a", null), new RowEnvUpdates(List.of()), Exploration.deterministic(),
        new ActionMask.Info("a"), new ActionMask.Observation("a"), new Transform.CastObservations(DataType.INT8),
        new Transform.ScaleObservations(1, 0), new Transform.RescaleObservations(0, 1),
        new Transform.CropObservations(0, 0, 1, 1), new Transform.ResizeObservations(1, 1),
        new Transform.GrayscaleObservations(true));
    /** Arguments beside the one that is null, by type. */
    private static final Map<Class<?>, Object> ARGUMENTS = Map.ofEntries(
        Map.entry(int.class, 1), Map.entry(long.class, 1L), Map.entry(double.class, 1.0),
        Map.entry(boolean.class, true), Map.entry(String.class, "a"), Map.entry(Object.class, "a"),
        Map.entry(Map.class, Map.of()), Map.entry(List.class, List.of()), Map.entry(Path.class, Path.of("a")),
        Map.entry(Duration.class, Duration.ofSeconds(1)), Map.entry(ByteBuffer.class, ByteBuffer.allocate(0)),
        Map.entry(Executor.class, (Executor) Runnable::run), Map.entry(Function.class, Function.identity()),
        Map.entry(Consumer.class, (Consumer<Object>) each -> { }),
        Map.entry(ChannelCredentials.class, InsecureChannelCredentials.create()),
        Map.entry(MlpAgent.Head.class, new MlpAgent.Categorical()),
        Map.entry(Space.class, new Space.Discrete(2, 0)), Map.entry(ActionMask.class, new ActionMask.Info("a")),
        Map.entry(AgentUpdate.class, Parameters.NONE), Map.entry(EnvUpdate.class, new EnvSpec("a")));

    @AfterAll
    static void close() {
        SAMPLER.close();
    }

    @Test
    void argumentsThatAreNullAreNamed() {
        List<String> failures = new ArrayList<>();
        int numChecked = 0;
        for (Object object : OBJECTS) {
            Class<?> type = object.getClass();
            for (Executable executable : publicIn(type)) {
                for (int position = 0; position < executable.getParameterCount(); position++) {
                    Parameter parameter = executable.getParameters()[position];
                    if (!parameter.getType().isPrimitive() && !(object instanceof Task && position == 1)) {
                        check(object, executable, position, failures);
                        numChecked++;
                    }
                }
            }
        }
        for (Class<?> type : List.of(EpisodeBatch.class, MultiAgentBatch.class)) {
            Method concatenate = assertDoesNotThrow(() -> type.getMethod("concatenate", List.class));
            check(type, concatenate, 0, failures);
        }
        assertEquals(List.of(), failures);
        assertTrue(numChecked > 100, numChecked + " arguments");
    }

    /** Returns the public constructors and methods that a class declares. */
    private static List<Executable> publicIn(Class<?> type) {
        return Stream.<Executable>concat(Arrays.stream(type.getConstructors()), Arrays.stream(type.getMethods()))
            .filter(each -> each.getDeclaringClass() == type && !each.isSynthetic())
            .filter(each -> !each.getName().equals("equals"))
            .toList();
    }

    private static void check(Object object, Executable executable, int position, List<String> failures) {
        Parameter[] parameters = executable.getParameters();
        Object[] arguments = new Object[parameters.length];
        for (int i = 0; i < arguments.length; i++) {
            arguments[i] = i == position ? null : argument(parameters[i].getType());
        }
        InvocationTargetException thrown = assertThrows(
            InvocationTargetException.class, () -> call(object, executable, arguments), executable.toString());
        if (!(thrown.getCause() instanceof NullPointerException error)
            || !parameters[position].getName().equals(error.getMessage())) {
            failures.add(executable + ", " + parameters[position].getName() + ": " + thrown.getCause());
        }
    }

    private static Object call(Object object, Executable executable, Object[] arguments)
        throws ReflectiveOperationException {
        return executable instanceof Constructor<?> constructor
            ? constructor.newInstance(arguments)
            : ((Method) executable).invoke(object, arguments);
    }

    private static Object argument(Class<?> type) {
        if (type.isArray()) {
            return Array.newInstance(type.getComponentType(), 0);
        }
        if (type.isEnum()) {
            return type.getEnumConstants()[0];
        }
        return Stream.concat(Stream.of(ARGUMENTS.get(type)), OBJECTS.stream()).filter(type::isInstance).findFirst()
            .orElse(ARGUMENTS.get(type));
    }

    @Test
    void elementsThatAreNullAreNamed() {
        Map<String, Runnable> calls = Map.of(
            "wrappers[1]", () -> new EnvSpec("a").withWrappers(new Wrapper("b"), null).id(),
            "tensors['b']", () -> new Parameters(Collections.singletonMap("b", null)),
            "agents[0]", () -> SAMPLER.updateAgentPerWorker(Collections.singletonList(null)));
        calls.forEach((name, call) ->
            assertEquals(name, assertThrows(NullPointerException.class, call::run).getMessage()));
    }

    @Test
    void valuesAreEqualByTheirContent() {
        Tensor floats = Tensor.of(new float[] {1, 2, 3, 4}, 2, 2);
        assertEquals(floats, Tensor.of(new float[] {1, 2, 3, 4}, 2, 2));
        assertEquals(floats.hashCode(), Tensor.of(new float[] {1, 2, 3, 4}, 2, 2).hashCode());
        for (Tensor other : List.of(
            Tensor.of(new float[] {1, 2, 3, 5}, 2, 2), Tensor.of(new float[] {1, 2, 3, 4}, 4),
            Tensor.of(new int[] {1, 2, 3, 4}, 2, 2))) {
            assertNotEquals(floats, other);
        }
        assertEquals(new Parameters(Map.of("a", floats)), new Parameters(Map.of("a", floats.rows(0, 2))));
        assertEquals(returns(3), returns(3));
        assertEquals(returns(3).hashCode(), returns(3).hashCode());
        assertNotEquals(returns(3), returns(4));
    }

    private static AgentReturns returns(double last) {
        return new AgentReturns(
            List.of("a", "b"), List.of(new PolicyVersion("p", 1)), new double[][] {{1, 2}, {0, last}},
            new int[][] {{0, 0}, {0, 0}});
    }
}
