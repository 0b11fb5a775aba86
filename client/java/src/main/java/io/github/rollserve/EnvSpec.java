package io.github.rollserve;

import io.github.rollserve.v1.Environment;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.function.UnaryOperator;

/**
 * The specification of an environment. Each {@code with…} method returns a specification with one more setting; what
 * is not set has its default.
 *
 * <pre>{@code
 * EnvSpec env = new EnvSpec("CartPole-v1").withKwargs(Map.of("max_episode_steps", 200)).withRows(8, 0);
 * }</pre>
 *
 * <p>Specifications are equal if all their settings are.
 */
@CheckReturnValue
public final class EnvSpec implements EnvUpdate {
    private final Environment wire;

    /**
     * Creates a specification with an id alone.
     *
     * @param id an id registered with gymnasium, such as {@code CartPole-v1}; or {@code module:Id},
     *     {@code module:Class} or {@code profile:NAME}; for many agents, see {@link #withMultiAgent(MultiAgentApi)}
     */
    public EnvSpec(String id) {
        this(Environment.newBuilder().setId(Objects.requireNonNull(id, "id")).build());
    }

    EnvSpec(Environment wire) {
        this.wire = wire;
    }

    private EnvSpec with(UnaryOperator<Environment.Builder> change) {
        return new EnvSpec(change.apply(wire.toBuilder()).build());
    }

    /**
     * Sets the keyword arguments of {@code gymnasium.make} or of the class.
     *
     * @param kwargs the arguments by name: values that JSON can hold
     * @return the specification
     */
    public EnvSpec withKwargs(Map<String, ?> kwargs) {
        return with(builder -> builder.setKwargsJson(Json.object("kwargs", kwargs)));
    }

    /**
     * Sets the wrappers around the environment.
     *
     * @param wrappers the wrappers, innermost first
     * @return the specification
     */
    public EnvSpec withWrappers(Wrapper... wrappers) {
        List<Wrapper> copy = Arguments.list("wrappers", wrappers);
        return with(builder -> builder.clearWrappers().addAllWrappers(EnvMessages.of(copy)));
    }

    /**
     * Sets changes of rewards, actions and observations.
     *
     * @param transforms the transforms, innermost first
     * @return the specification
     */
    public EnvSpec withTransforms(Transform... transforms) {
        List<Transform> copy = Arguments.list("transforms", transforms);
        return with(builder -> builder.clearTransforms()
            .addAllTransforms(copy.stream().map(TransformMessages::of).toList()));
    }

    /**
     * Sets the task, which is set after the environment is made.
     *
     * @param task the task; none by default
     * @return the specification
     */
    public EnvSpec withTask(Task task) {
        return with(builder -> builder.setTask(EnvMessages.of(Objects.requireNonNull(task, "task"))));
    }

    /**
     * Sets the {@code options} of each reset.
     *
     * @param resetOptions the options by name: values that JSON can hold
     * @return the specification
     */
    public EnvSpec withResetOptions(Map<String, ?> resetOptions) {
        return with(builder -> builder.setResetOptionsJson(Json.object("resetOptions", resetOptions)));
    }

    /**
     * Sets how the rows are stepped.
     *
     * @param vectorization the way; {@link Vectorization#DEFAULT} by default
     * @return the specification
     */
    public EnvSpec withVectorization(Vectorization vectorization) {
        return with(builder ->
            builder.setVectorizationValue(Objects.requireNonNull(vectorization, "vectorization").ordinal()));
    }

    /**
     * Sets the numbers of rows and of their episodes.
     *
     * @param numRows the number of rows that each worker steps at once for a call; 0 for the server's setting
     * @param numEpisodesPerRow the number of episodes of each row in a block, where rows are stepped together; 0 for
     *     the server's setting
     * @return the specification
     */
    public EnvSpec withRows(int numRows, int numEpisodesPerRow) {
        return with(builder -> builder.setRowCount(numRows).setEpisodesPerRow(numEpisodesPerRow));
    }

    /**
     * Sets the number of bytes of UTF-8 that batches have of each text among the infos, which
     * {@link Columns#texts(String)} reads.
     *
     * @param bytes the number, at most 65,536; 0, the default: infos that are no numbers are not delivered
     * @return the specification
     */
    public EnvSpec withTextInfoBytes(int bytes) {
        return with(builder -> builder.setTextInfoBytes(bytes));
    }

    /**
     * Sets the interface of an environment with many agents, whose id is one of PettingZoo's registry, such as
     * {@code classic/connect_four-v3}, or {@code mpe/NAME-vN} or {@code module:factory}.
     *
     * @param multiAgent the interface; {@link MultiAgentApi#NONE} by default
     * @return the specification
     */
    public EnvSpec withMultiAgent(MultiAgentApi multiAgent) {
        return with(builder -> builder.setMultiAgentValue(Objects.requireNonNull(multiAgent, "multiAgent").ordinal()));
    }

    /**
     * Sets whether batches have the global state of an environment with many agents:
     * {@link MultiAgentBatch#globalStates()}.
     *
     * @param isRecorded whether they have it; false by default
     * @return the specification
     */
    public EnvSpec withGlobalState(boolean isRecorded) {
        return with(builder -> builder.setGlobalState(isRecorded));
    }

    /** {@return the id} */
    public String id() {
        return wire.getId();
    }

    /** {@return the keyword arguments, as JSON has them: see {@link Sampler#callEnvironments(String, Object...)}} */
    public Map<String, ?> kwargs() {
        return Json.read("kwargs_json", wire.getKwargsJson());
    }

    /** {@return the wrappers, innermost first} */
    public List<Wrapper> wrappers() {
        return wire.getWrappersList().stream()
            .map(wrapper -> new Wrapper(wrapper.getName(), Json.read("wrappers.kwargs_json", wrapper.getKwargsJson())))
            .toList();
    }

    /** {@return the transforms that this client knows, innermost first} */
    public List<Transform> transforms() {
        return wire.getTransformsList().stream().map(TransformMessages::from).flatMap(Optional::stream).toList();
    }

    /** {@return the task; empty for none} */
    public Optional<Task> task() {
        return wire.hasTask() ? Optional.of(EnvMessages.from(wire.getTask())) : Optional.empty();
    }

    /** {@return the {@code options} of each reset, as JSON has them} */
    public Map<String, ?> resetOptions() {
        return Json.read("reset_options_json", wire.getResetOptionsJson());
    }

    /** {@return how the rows are stepped} */
    public Vectorization vectorization() {
        return Vectorization.from(wire.getVectorizationValue());
    }

    /** {@return the number of rows that each worker steps at once for a call; 0 for the server's setting} */
    public int numRows() {
        return wire.getRowCount();
    }

    /** {@return the number of episodes of each row in a block; 0 for the server's setting} */
    public int numEpisodesPerRow() {
        return wire.getEpisodesPerRow();
    }

    /** {@return the number of bytes of each text among the infos; 0 for none} */
    public int textInfoBytes() {
        return wire.getTextInfoBytes();
    }

    /** {@return the interface of an environment with many agents} */
    public MultiAgentApi multiAgent() {
        return MultiAgentApi.from(wire.getMultiAgentValue());
    }

    /** {@return whether batches have the global state} */
    public boolean globalState() {
        return wire.getGlobalState();
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof EnvSpec spec && wire.equals(spec.wire);
    }

    @Override
    public int hashCode() {
        return wire.hashCode();
    }

    /** {@return the id and the arguments, such as <code>CartPole-v1 {"max_episode_steps":200}</code>} */
    @Override
    public String toString() {
        return (wire.getId() + " " + wire.getKwargsJson()).strip();
    }

    Environment toWire() {
        return wire;
    }
}
