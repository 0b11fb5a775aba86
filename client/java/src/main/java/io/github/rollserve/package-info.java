/**
 * Client of Rollserve, a server that samples episodes for reinforcement learning.
 *
 * <p>{@link io.github.rollserve.Sampler#connect(String)} returns a client. A trainer sends an agent, and receives
 * finished episodes as flat arrays:
 *
 * <pre>{@code
 * try (Sampler sampler = Sampler.connect("127.0.0.1:50051")) {
 *     EnvUpdated env = sampler.updateEnv("CartPole-v1");
 *     MlpAgent agent = MlpAgent.initial(env.observationSpace(), env.actionSpace(), new int[] {64, 64}, 0);
 *     sampler.updateAgent(agent);
 *     EpisodeBatch batch = sampler.obtainSamples(10_000);
 *     FloatBuffer observations = batch.observations().plain().floats();
 * }
 * }</pre>
 *
 * <p>{@link io.github.rollserve.Sampler#multiAgent()} has the calls for environments with many agents, whose
 * {@link io.github.rollserve.Policies} have names.
 *
 * <p>No argument, element or result is null unless its comment says so; an argument that is null fails with a
 * {@link NullPointerException} that names it. Classes that are marked by
 * {@link io.github.rollserve.CheckReturnValue} are immutable: their {@code with…} methods return a changed copy. Values
 * and results are equal if their contents are, batches only to themselves. Later versions add methods, options,
 * constants of enums, and components of records that calls return: read such records by their accessors.
 *
 * <p>In the comments, N is the number of segments of a batch, E the number of its episodes where there are many agents,
 * and T the number of steps of all its segments or episodes. {@code *O}, {@code *A}, {@code *I}, {@code *H} and
 * {@code *S} are the axes of one observation, action, info, recurrent state or global state.
 * Seeds have 64 bits: {@link Long#toUnsignedString(long)} prints them.
 */
package io.github.rollserve;
