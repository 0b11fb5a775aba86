package io.github.rollserve;

import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * The specification of an environment.
 *
 * @param id an id registered with gymnasium, such as {@code CartPole-v1}; or {@code module:Id}, {@code module:Class} or
 *     {@code profile:NAME}
 * @param kwargs the keyword arguments of {@code gymnasium.make} or of the class: values that JSON can hold
 * @param wrappers wrappers around the environment, innermost first
 * @param transforms changes of rewards, actions and observations, innermost first
 * @param task the task that is set after the environment is made; empty for none
 * @param resetOptions the {@code options} of each reset
 * @param vectorization how the rows are stepped
 * @param numRows the number of rows that each worker steps at once for a call; 0 for the server's setting
 * @param numEpisodesPerRow the number of episodes of each row in a block, where rows are stepped together; 0 for the
 *     server's setting
 * @param textInfoBytes the number of bytes of UTF-8 that batches have of each text among the infos, at most 65,536; 0:
 *     infos that are no numbers are not delivered. {@link Columns#texts(String)} reads them
 * @param multiAgent the interface of an environment with many agents, whose id is one of PettingZoo's registry, such as
 *     {@code classic/connect_four-v3}, or {@code mpe/NAME-vN} or {@code module:factory}
 * @param globalState whether batches have the environment's global state: {@link MultiAgentBatch#globalStates()}
 */
@CheckReturnValue
public record EnvSpec(
    String id,
    Map<String, ?> kwargs,
    List<Wrapper> wrappers,
    List<Transform> transforms,
    Optional<Task> task,
    Map<String, ?> resetOptions,
    Vectorization vectorization,
    int numRows,
    int numEpisodesPerRow,
    int textInfoBytes,
    MultiAgentApi multiAgent,
    boolean globalState)
    implements EnvUpdate {
    /**
     * Creates a specification with an id alone; the methods below return others with more.
     *
     * @param id an id of an environment
     */
    public EnvSpec(String id) {
        this(id, Map.of(), List.of(), List.of(), Optional.empty(), Map.of(), Vectorization.DEFAULT, 0, 0, 0,
            MultiAgentApi.NONE, false);
    }

    /**
     * Returns a specification with other keyword arguments.
     *
     * @param changed the arguments
     * @return the specification
     */
    public EnvSpec withKwargs(Map<String, ?> changed) {
        return new EnvSpec(
            id, changed, wrappers, transforms, task, resetOptions, vectorization, numRows, numEpisodesPerRow,
            textInfoBytes, multiAgent, globalState);
    }

    /**
     * Returns a specification with other wrappers.
     *
     * @param changed the wrappers, innermost first
     * @return the specification
     */
    public EnvSpec withWrappers(Wrapper... changed) {
        return new EnvSpec(
            id, kwargs, List.of(changed), transforms, task, resetOptions, vectorization, numRows, numEpisodesPerRow,
            textInfoBytes, multiAgent, globalState);
    }

    /**
     * Returns a specification with other transforms.
     *
     * @param changed the transforms, innermost first
     * @return the specification
     */
    public EnvSpec withTransforms(Transform... changed) {
        return new EnvSpec(
            id, kwargs, wrappers, List.of(changed), task, resetOptions, vectorization, numRows, numEpisodesPerRow,
            textInfoBytes, multiAgent, globalState);
    }

    /**
     * Returns a specification with another task.
     *
     * @param changed the task
     * @return the specification
     */
    public EnvSpec withTask(Task changed) {
        return new EnvSpec(
            id, kwargs, wrappers, transforms, Optional.of(changed), resetOptions, vectorization, numRows,
            numEpisodesPerRow,
            textInfoBytes, multiAgent, globalState);
    }

    /**
     * Returns a specification with other options of resets.
     *
     * @param changed the options
     * @return the specification
     */
    public EnvSpec withResetOptions(Map<String, ?> changed) {
        return new EnvSpec(
            id, kwargs, wrappers, transforms, task, changed, vectorization, numRows, numEpisodesPerRow,
            textInfoBytes, multiAgent, globalState);
    }

    /**
     * Returns a specification whose rows are stepped in another way.
     *
     * @param changed the way
     * @return the specification
     */
    public EnvSpec withVectorization(Vectorization changed) {
        return new EnvSpec(
            id, kwargs, wrappers, transforms, task, resetOptions, changed, numRows, numEpisodesPerRow,
            textInfoBytes, multiAgent, globalState);
    }

    /**
     * Returns a specification with other numbers of rows and episodes.
     *
     * @param rows the number of rows that each worker steps at once for a call; 0 for the server's setting
     * @param episodesPerRow the number of episodes of each row in a block; 0 for the server's setting
     * @return the specification
     */
    public EnvSpec withRows(int rows, int episodesPerRow) {
        return new EnvSpec(
            id, kwargs, wrappers, transforms, task, resetOptions, vectorization, rows, episodesPerRow,
            textInfoBytes, multiAgent, globalState);
    }

    /**
     * Returns a specification with another number of bytes of each text among the infos.
     *
     * @param bytes the number, at most 65,536; 0 for no texts
     * @return the specification
     */
    public EnvSpec withTextInfoBytes(int bytes) {
        return new EnvSpec(
            id, kwargs, wrappers, transforms, task, resetOptions, vectorization, numRows, numEpisodesPerRow, bytes,
            multiAgent, globalState);
    }
    /**
     * Returns a specification of an environment with many agents.
     *
     * @param changed the interface of the environment
     * @return the specification
     */
    public EnvSpec withMultiAgent(MultiAgentApi changed) {
        return new EnvSpec(
            id, kwargs, wrappers, transforms, task, resetOptions, vectorization, numRows, numEpisodesPerRow,
            textInfoBytes, changed, globalState);
    }

    /**
     * Returns a specification whose batches have, or lack, the global state of an environment with many agents.
     *
     * @param isRecorded whether they have it
     * @return the specification
     */
    public EnvSpec withGlobalState(boolean isRecorded) {
        return new EnvSpec(
            id, kwargs, wrappers, transforms, task, resetOptions, vectorization, numRows, numEpisodesPerRow,
            textInfoBytes, multiAgent, isRecorded);
    }
}
