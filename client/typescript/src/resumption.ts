/**
 * Resumption of streams after interruptions: what has been received, and which call delivers the rest.
 *
 * @packageDocumentation
 */

import { clone } from "@bufbuild/protobuf";

import type { Account } from "./account.js";
import type { AnyBatch } from "./batch_kinds.js";
import { malformed, mismatch } from "./errors.js";
import { Reproducibility, type Beginning } from "./generated/rollserve/v1/episode_batch_pb.js";
import {
  ObtainExactEpisodesRequestSchema,
  ObtainSamplesRequestSchema,
  type ObtainExactEpisodesRequest,
  type ObtainSamplesRequest,
  type SamplingOptions,
} from "./generated/rollserve/v1/sampler_service_pb.js";

/** A request for a stream of batches. */
export type SamplingRequest = ObtainSamplesRequest | ObtainExactEpisodesRequest;

/** Whether episodes of a class are the same when they are requested again. */
export function isRepeatable(reproducibility: Reproducibility): boolean {
  return reproducibility === Reproducibility.EPISODE || reproducibility === Reproducibility.BLOCK;
}

/** The position of a stream, over all calls that deliver it, so that no step is delivered twice or left out. */
export class Resumption {
  readonly #request: SamplingRequest;
  #beginning: Beginning | undefined;
  #numResumptions = 0;
  // Whole episodes: their number, their steps, and the index and the steps of the last one.
  #numEpisodes = 0;
  #numSteps = 0;
  #lastIndex = 0n;
  #numLastSteps = 0;
  // The episode that was received in part: its index and steps. For fragments, the steps of all episodes that were
  // received after the last whole one.
  #partialIndex = 0n;
  #numPartialSteps = 0;
  // The present call: the steps to skip, the episode that they belong to, and the whole episodes before the call.
  #numStepsToSkip = 0;
  #indexToSkip: bigint | undefined;
  #before = { numEpisodes: 0n, numSteps: 0n, numFailedEpisodes: 0n };
  // Steps of all agents: in whole episodes, in the last one, in the one that was received in part; and those that
  // arrived once more in the present call.
  #numAgentSteps = 0;
  #numLastAgentSteps = 0;
  #numPartialAgentSteps = 0;
  #numAgentStepsAgain = 0;

  /** Start with the first call's request. */
  constructor(request: SamplingRequest) {
    this.#request = request;
  }

  /** Whether the stream's beginning is known. */
  get hasBegun(): boolean {
    return this.#beginning !== undefined;
  }

  /** Whether the stream's episodes can be requested again. */
  get isPossible(): boolean {
    return this.#beginning !== undefined && isRepeatable(this.#beginning.reproducibility);
  }

  /** Record the first message of a call. */
  begin(beginning: Beginning): void {
    this.#beginning ??= beginning;
  }

  /**
   * Record a batch, and return the part of it that was not received before; undefined for none.
   *
   * @throws ServerError - A call that leaves out the rest of an episode after its first part.
   */
  take<B extends AnyBatch>(received: B): B | undefined {
    const firstIndex = received.episodeIndices[0];
    if (this.#numStepsToSkip > 0 && this.#indexToSkip !== undefined && this.#indexToSkip !== firstIndex) {
      const expected = `the rest of episode ${String(this.#indexToSkip)}, whose first part was received before`;
      throw malformed(mismatch(expected, `episode ${String(firstIndex)}`));
    }
    const numSkipped = Math.min(this.#numStepsToSkip, received.numSteps);
    this.#numStepsToSkip -= numSkipped;
    if (numSkipped === received.numSteps) {
      this.#numAgentStepsAgain += agentStepCountsOf(received).reduce((sum, count) => sum + count, 0);
      return undefined;
    }
    const batch = numSkipped === 0 ? received : this.#withoutReceived(received, numSkipped);
    const agentStepCounts = agentStepCountsOf(batch);
    batch.lengths.forEach((length, segment) => {
      this.#numPartialSteps += length;
      this.#numPartialAgentSteps += agentStepCounts[segment] ?? 0;
      this.#partialIndex = batch.episodeIndices[segment] ?? 0n;
      if (batch.terminated[segment] === 1 || batch.truncated[segment] === 1) {
        this.#numEpisodes += 1;
        this.#numSteps += this.#numPartialSteps;
        this.#lastIndex = this.#partialIndex;
        this.#numLastSteps = this.#numPartialSteps;
        this.#numPartialSteps = 0;
        this.#numAgentSteps += this.#numPartialAgentSteps;
        this.#numLastAgentSteps = this.#numPartialAgentSteps;
        this.#numPartialAgentSteps = 0;
      }
    });
    return batch;
  }

  /** Return a batch without first steps that were received before. */
  #withoutReceived<B extends AnyBatch>(received: B, numSteps: number): B {
    // Of policies that are not delivered, only the number of steps is known.
    const numAgentSteps = this.#numPartialAgentSteps - this.#numAgentStepsAgain;
    const batch: AnyBatch = received;
    const rest =
      "agentStepCounts" in batch ? batch.withoutFirstSteps(numSteps, numAgentSteps) : batch.withoutFirstSteps(numSteps);
    return rest as B;
  }

  /** Return the request for what has not been received: all of it, if the stream has not begun. */
  rest(): SamplingRequest {
    const beginning = this.#beginning;
    if (beginning === undefined) {
      return this.#request;
    }
    this.#numResumptions += 1;
    this.#numAgentStepsAgain = 0;
    if (this.#request.$typeName === "rollserve.v1.ObtainExactEpisodesRequest") {
      return this.#restOfExactEpisodes(this.#request, beginning);
    }
    return this.#request.fragments === undefined
      ? this.#restOfSamples(this.#request, beginning)
      : this.#restOfFragments(this.#request, beginning);
  }

  /** Return the account of the whole stream, for the account of its last call. */
  whole(account: Account): Account {
    if (this.#numResumptions === 0 || this.#beginning === undefined) {
      return account;
    }
    const { numEpisodes, numSteps, numFailedEpisodes } = this.#before;
    return {
      ...account,
      numEpisodes: account.numEpisodes + numEpisodes,
      numSteps: account.numSteps + numSteps,
      numCarriedSteps: account.numCarriedSteps + numSteps,
      numFailedEpisodes: account.numFailedEpisodes + numFailedEpisodes,
      firstEpisodeIndex: this.#beginning.firstEpisodeIndex,
      numResumptions: this.#numResumptions,
    };
  }

  #restOfSamples(request: ObtainSamplesRequest, beginning: Beginning): ObtainSamplesRequest {
    let [numEpisodes, numSteps, numSkipped] = [this.#numEpisodes, this.#numSteps, this.#numPartialSteps];
    let nextIndex = this.#nextIndex(beginning);
    const countsAgents = request.options?.countAgentSteps ?? false;
    let numCounted = countsAgents ? this.#numAgentSteps : numSteps;
    if (numSkipped === 0 && BigInt(numCounted) >= request.stepCount) {
      // Only the account is missing, and a call needs at least one step: request the last episode once more.
      [numEpisodes, numSteps] = [numEpisodes - 1, numSteps - this.#numLastSteps];
      [numSkipped, nextIndex] = [this.#numLastSteps, this.#lastIndex];
      numCounted -= countsAgents ? this.#numLastAgentSteps : this.#numLastSteps;
    }
    this.#continueAt(beginning, nextIndex, numEpisodes, numSteps, numSkipped);
    const rest = clone(ObtainSamplesRequestSchema, request);
    const options = continued(rest, beginning);
    options.firstEpisodeIndex = nextIndex;
    rest.stepCount -= BigInt(numCounted);
    return rest;
  }

  #restOfExactEpisodes(request: ObtainExactEpisodesRequest, beginning: Beginning): ObtainExactEpisodesRequest {
    const nextIndex = this.#nextIndex(beginning);
    this.#continueAt(beginning, nextIndex, this.#numEpisodes, this.#numSteps, this.#numPartialSteps);
    const rest = clone(ObtainExactEpisodesRequestSchema, request);
    const options = continued(rest, beginning);
    options.firstEpisodeIndex = beginning.firstEpisodeIndex - request.skipEpisodeCount;
    rest.skipEpisodeCount += nextIndex - beginning.firstEpisodeIndex;
    expectWorkers(options, beginning);
    return rest;
  }

  /** Return the same request, from the same position of the rows, without the steps that were received. */
  #restOfFragments(request: ObtainSamplesRequest, beginning: Beginning): ObtainSamplesRequest {
    const numSteps = BigInt(this.#numSteps + this.#numPartialSteps);
    this.#before = { numEpisodes: BigInt(this.#numEpisodes), numSteps, numFailedEpisodes: 0n };
    const rest = clone(ObtainSamplesRequestSchema, request);
    const options = continued(rest, beginning);
    expectWorkers(options, beginning);
    if (rest.fragments !== undefined) {
      rest.fragments.rowStepCount = beginning.rowStepCount;
      rest.fragments.skipStepCount += numSteps;
    }
    return rest;
  }

  /** Return the index of the first episode that was not received whole. */
  #nextIndex(beginning: Beginning): bigint {
    if (this.#numPartialSteps > 0) {
      return this.#partialIndex;
    }
    // The index of the last episode counts, not the number of episodes: some may have been skipped.
    return this.#numEpisodes > 0 ? this.#lastIndex + 1n : beginning.firstEpisodeIndex;
  }

  #continueAt(
    beginning: Beginning,
    nextIndex: bigint,
    numEpisodes: number,
    numSteps: number,
    numSkipped: number,
  ): void {
    this.#before = {
      numEpisodes: BigInt(numEpisodes),
      numSteps: BigInt(numSteps),
      numFailedEpisodes: nextIndex - beginning.firstEpisodeIndex - BigInt(numEpisodes),
    };
    this.#numStepsToSkip = numSkipped;
    this.#indexToSkip = nextIndex;
  }
}

/** Return the number of steps of all agents in each segment, or in each part of an episode. */
function agentStepCountsOf(batch: AnyBatch): Uint32Array {
  return "agentStepCounts" in batch ? batch.agentStepCounts : batch.lengths;
}

/** Make a request sample with the seed, versions and run that an earlier call began with; return its options. */
function continued(request: SamplingRequest, beginning: Beginning): SamplingOptions {
  const { options } = request;
  if (options === undefined) {
    throw new TypeError("options: expected options of a call that samples, got none");
  }
  // These were checked, or made, when the stream began.
  delete options.expectedPolicyVersion;
  delete options.expectedEnvironmentVersion;
  delete options.workerCount;
  delete options.agentUpdate;
  options.prefetch = false; // not allowed with a seed
  options.seed = beginning.seed;
  options.policyVersion = beginning.policyVersion;
  options.environmentVersion = beginning.environmentVersion;
  options.samplerRun = beginning.samplerRun;
  return options;
}

/** Make a call fail unless it has as many workers as an earlier call, because its episodes depend on them. */
function expectWorkers(options: SamplingOptions, beginning: Beginning): void {
  if (beginning.workerCount !== 0) {
    options.workerCount = beginning.workerCount; // older servers do not report the number, and cannot change it
  }
}
