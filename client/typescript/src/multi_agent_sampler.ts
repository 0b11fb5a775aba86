/**
 * Calls of a sampler in environments with many agents.
 *
 * @packageDocumentation
 */

import type { Integer } from "./integers.js";
import type { MultiAgentBatch } from "./multi_agent_batch.js";
import type { FragmentOptions, SamplingOptions } from "./options.js";
import type { SampleStream } from "./sample_stream.js";

/** Functions that begin the calls. */
export interface MultiAgentCalls {
  readonly samples: (numSteps: Integer, options: SamplingOptions) => SampleStream<MultiAgentBatch>;
  readonly exactEpisodes: (numEpisodesPerWorker: Integer, options: SamplingOptions) => SampleStream<MultiAgentBatch>;
  readonly fragments: (numSteps: Integer, options: FragmentOptions) => SampleStream<MultiAgentBatch>;
}

/**
 * The calls of a sampler in environments with many agents, which return batches of many agents.
 *
 * Updates, evaluations and the status are those of the sampler: `updateEnv` with `multiAgent`, `updateAgent` with
 * `Policies`, and `evaluate`. Calls in an environment with one agent fail with an InvalidArgumentError.
 *
 * @example
 * ```ts
 * await sampler.updateEnv({ id: "classic/connect_four-v3", multiAgent: "aec" });
 * const agent = new RandomAgent({ actionMask: { observation: "action_mask" } });
 * const map = [{ name: "player_0", choices: "main" }, { prefix: "", choices: "other" }];
 * await sampler.updateAgent(new Policies({ main: agent, other: agent }, map));
 * const batch = await sampler.multiAgent.obtainSamples(10_000, { deliver: ["main"] });
 * console.log(batch.byPolicy().get("main")?.episodeReturns);
 * ```
 */
export class MultiAgentSampler {
  readonly #calls: MultiAgentCalls;

  /** @internal */
  constructor(calls: MultiAgentCalls) {
    this.#calls = calls;
  }

  /** Sample whole episodes with at least `numSteps` environment steps in all; see the option `count`. */
  async obtainSamples(numSteps: Integer, options: SamplingOptions = {}): Promise<MultiAgentBatch> {
    return this.streamSamples(numSteps, options).join();
  }

  /** Sample an exact number of episodes on each worker: first all of worker 0, then all of worker 1, and so on. */
  async obtainExactEpisodes(numEpisodesPerWorker: Integer, options: SamplingOptions = {}): Promise<MultiAgentBatch> {
    return this.streamExactEpisodes(numEpisodesPerWorker, options).join();
  }

  /**
   * Sample exactly `numSteps` environment steps, the same number of each row; episodes continue from call to call.
   *
   * A batch has the steps of agents that are complete within it, with their rewards and what was observed after them. A
   * step that is not is the agent's first one in the fragment in which it becomes complete, as a segment of its own.
   */
  async obtainFragments(numSteps: Integer, options: FragmentOptions = {}): Promise<MultiAgentBatch> {
    return this.streamFragments(numSteps, options).join();
  }

  /** Stream what `obtainSamples` returns, batch by batch as it arrives. */
  streamSamples(numSteps: Integer, options: SamplingOptions = {}): SampleStream<MultiAgentBatch> {
    return this.#calls.samples(numSteps, options);
  }

  /** Stream what `obtainExactEpisodes` returns, batch by batch as it arrives. */
  streamExactEpisodes(numEpisodesPerWorker: Integer, options: SamplingOptions = {}): SampleStream<MultiAgentBatch> {
    return this.#calls.exactEpisodes(numEpisodesPerWorker, options);
  }

  /** Stream what `obtainFragments` returns, batch by batch as it arrives. */
  streamFragments(numSteps: Integer, options: FragmentOptions = {}): SampleStream<MultiAgentBatch> {
    return this.#calls.fragments(numSteps, options);
  }
}
