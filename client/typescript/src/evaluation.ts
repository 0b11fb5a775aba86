/**
 * Results of evaluations, and the reader that receives them.
 *
 * @packageDocumentation
 */

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";

import { accountFromMessage, type Account } from "./account.js";
import { AgentReturns } from "./agent_returns.js";
import { OF_MANY_AGENTS, OF_ONE_AGENT } from "./batch_kinds.js";
import type { EpisodeBatch } from "./episode_batch.js";
import { malformed, readingError } from "./errors.js";
import type { Beginning } from "./generated/rollserve/v1/episode_batch_pb.js";
import type {
  Evaluation as EvaluationMessage,
  Summary as SummaryMessage,
} from "./generated/rollserve/v1/evaluation_pb.js";
import {
  EvaluateRequestSchema,
  EvaluateResponseSchema,
  EvaluationOptionsSchema,
  type EvaluateRequest,
} from "./generated/rollserve/v1/sampler_service_pb.js";
import { uint32 } from "./integers.js";
import type { MultiAgentBatch } from "./multi_agent_batch.js";
import type { Attempts } from "./receiver.js";
import { reproducibilityFrom, type Reproducibility } from "./reproducibility.js";
import { isRepeatable } from "./resumption.js";
import { warnOf } from "./warnings.js";

/** Statistics of N numbers. */
export interface Summary {
  /** The mean. */
  readonly mean: number;
  /** The sample standard deviation; undefined for a single number. */
  readonly standardDeviation: number | undefined;
  /** The 95 % confidence interval of the mean, by Student's t distribution; undefined for a single number. */
  readonly confidenceInterval: readonly [low: number, high: number] | undefined;
}

/** The result of evaluating an agent on N episodes, in the order of their indices. */
export interface Evaluation {
  /** (N). The sum of each episode's rewards, added up step by step. */
  readonly returns: Float64Array;
  /** (N). The number of each episode's steps, which is less than 2^32. */
  readonly lengths: Uint32Array;
  /** (N). 1 where the environment ended the episode, else 0. */
  readonly terminated: Uint8Array;
  /** (N). 1 where a limit ended the episode, else 0. */
  readonly truncated: Uint8Array;
  /** The summary of the returns. */
  readonly returnSummary: Summary;
  /** The summary of the lengths. */
  readonly lengthSummary: Summary;
  /** The version of the policy that acted. */
  readonly policyVersion: bigint;
  /** The version of the sampler's environment; undefined if the call brought its own. */
  readonly envVersion: bigint | undefined;
  /** The root seed of the episodes. */
  readonly seed: bigint;
  /** The index of the first episode. */
  readonly firstEpisodeIndex: bigint;
  /** Which unit of work the same seed gives again. */
  readonly reproducibility: Reproducibility;
  /** The account of the call. Episodes that are not returned count as discarded. */
  readonly account: Account;
  /** The episodes, if the call asked for them in an environment with one agent. */
  readonly episodes: EpisodeBatch | undefined;
  /** The episodes, if the call asked for them in an environment with many agents. */
  readonly multiAgentEpisodes: MultiAgentBatch | undefined;
  /**
   * What each agent got, in an environment with many agents; undefined with one. `returns` then are sums over all
   * agents, and `lengths` count environment steps.
   */
  readonly agentReturns: AgentReturns | undefined;
}

/** The reader of the responses of Evaluate. */
export class EvaluationReader implements Attempts {
  hasBegun = false;
  canRepeat = false;
  waitingFor = "";

  readonly #request: EvaluateRequest;
  #batches: EpisodeBatch[] = [];
  #batchesOfMany: MultiAgentBatch[] = [];
  #evaluation: EvaluationMessage | undefined;

  /** Start with the first attempt's request. */
  constructor(request: EvaluateRequest) {
    this.#request = request;
  }

  /** Return the request; episodes of an interrupted call are dropped, because a repeated call delivers all of them. */
  request(): Uint8Array {
    this.#batches = [];
    this.#batchesOfMany = [];
    return toBinary(EvaluateRequestSchema, this.#request);
  }

  /**
   * Read a serialized response.
   *
   * @throws ServerError - A malformed response.
   */
  read(response: Uint8Array): void {
    try {
      this.#read(response);
    } catch (error) {
      throw readingError(error);
    }
  }

  /**
   * Return the evaluation, after the end of the stream.
   *
   * @throws ServerError - The stream ended without an evaluation, or with episodes that do not fit together.
   * @throws InvalidArgumentError - An episode of 2^32 steps or more.
   */
  result(): Evaluation {
    const message = this.#evaluation;
    if (message?.account === undefined) {
      throw malformed("the stream ended without its evaluation");
    }
    const account = accountFromMessage(message.account);
    const returnsEpisodes = this.#request.episodes !== undefined;
    const hasMany = this.#batchesOfMany.length > 0;
    return {
      returns: Float64Array.from(message.returns),
      lengths: Uint32Array.from(message.lengths, (length) => uint32("lengths", length)),
      terminated: Uint8Array.from(message.terminated, Number),
      truncated: Uint8Array.from(message.truncated, Number),
      returnSummary: summaryFrom(message.returnSummary),
      lengthSummary: summaryFrom(message.lengthSummary),
      policyVersion: message.policyVersion,
      envVersion: message.environmentVersion === 0n ? undefined : message.environmentVersion,
      seed: message.seed,
      firstEpisodeIndex: message.firstEpisodeIndex,
      reproducibility: reproducibilityFrom(message.reproducibility),
      account,
      episodes: returnsEpisodes && !hasMany ? OF_ONE_AGENT.join(this.#batches, account) : undefined,
      multiAgentEpisodes: hasMany ? OF_MANY_AGENTS.join(this.#batchesOfMany, account) : undefined,
      agentReturns: agentReturnsFrom(message),
    };
  }

  #read(response: Uint8Array): void {
    const { content } = fromBinary(EvaluateResponseSchema, response, { readUnknownFields: false });
    switch (content.case) {
      case "beginning":
        this.#repeatFrom(content.value);
        break;
      case "batch":
        this.#batches.push(OF_ONE_AGENT.read(content, 0n));
        break;
      case "multiAgentBatch":
        this.#batchesOfMany.push(OF_MANY_AGENTS.read(content, 0n));
        break;
      case "progress":
        this.waitingFor = content.value.waitingFor;
        warnOf(content.value);
        break;
      case "evaluation":
        this.#evaluation = content.value;
        break;
      default: // a content of newer servers
    }
  }

  /** Make the request repeat the call that has begun. */
  #repeatFrom(beginning: Beginning): void {
    this.hasBegun = true;
    this.canRepeat = isRepeatable(beginning.reproducibility);
    const options = (this.#request.options ??= create(EvaluationOptionsSchema));
    options.seed = beginning.seed;
    options.policyVersion = beginning.policyVersion;
    options.samplerRun = beginning.samplerRun;
    delete options.expectedPolicyVersion; // checked already, and the current versions may change
    delete options.expectedEnvironmentVersion;
    if (options.environment === undefined) {
      options.environmentVersion = beginning.environmentVersion;
    }
  }
}

function agentReturnsFrom({ agentReturns, returns }: EvaluationMessage): AgentReturns | undefined {
  try {
    return agentReturns && new AgentReturns(agentReturns, returns.length);
  } catch (error) {
    throw readingError(error);
  }
}

function summaryFrom(message: SummaryMessage | undefined): Summary {
  const { mean = NaN, standardDeviation, confidenceLow, confidenceHigh } = message ?? {};
  const hasInterval = confidenceLow !== undefined && confidenceHigh !== undefined;
  return { mean, standardDeviation, confidenceInterval: hasInterval ? [confidenceLow, confidenceHigh] : undefined };
}
