/**
 * Options of calls, and the messages that carry them.
 *
 * @packageDocumentation
 */

import { create, toBinary } from "@bufbuild/protobuf";

import { agentUpdateToMessage, type AgentUpdate } from "./agents.js";
import { toCodecs, type Compression } from "./compression.js";
import { envSpecToMessage, type EnvSpec } from "./environments.js";
import { InvalidArgumentError } from "./errors.js";
import {
  AgentUpdateSchema,
  DriveSpecSchema,
  EvaluationOptionsSchema,
  ExplorationSchema,
  SamplingOptionsSchema,
  type AgentUpdate as AgentUpdateMessage,
  type DriveSpec,
  type EvaluationOptions as EvaluationOptionsMessage,
  type Exploration,
  type SamplingOptions as SamplingOptionsMessage,
} from "./generated/rollserve/v1/sampler_service_pb.js";
import type { Compression as Codec } from "./generated/rollserve/v1/tensor_pb.js";
import { int64, uint32, uint64, type Integer } from "./integers.js";
import { policyMapToMessage, type PolicyMap } from "./policies.js";
import type { RowForm } from "./spaces.js";
import { Tensor } from "./tensor.js";
import { namedTensorsToMessages } from "./tensor_messages.js";

/** The largest message of a stream by default, in bytes. Most messages are far smaller. */
export const DEFAULT_MESSAGE_BYTES = 8 * 1024 * 1024;

/** The largest agent in a call that samples: what servers accept, less room for the other options. */
const MAX_AGENT_BYTES = (4 << 20) - (4 << 10);

/** Options of every call. */
export interface CallOptions {
  /** Seconds to wait for the answer; of a stream, seconds without progress. By default those given to `connect`. */
  readonly timeoutSeconds?: number | undefined;
  /** A signal that cancels the call, which then fails with a CancelledError. */
  readonly signal?: AbortSignal | undefined;
}

/** Options of calls that sample or evaluate. */
export interface EpisodeOptions extends CallOptions {
  /** Seconds in total after which the call fails with a DeadlineError; no limit by default. */
  readonly deadlineSeconds?: number | undefined;
  /**
   * The root seed of the episodes, from 0 to 2^64 - 1. Without it, calls that sample continue the sampler's own
   * sequence, and every evaluation plays the same episodes.
   */
  readonly seed?: Integer | undefined;
  /** The index of the first episode in the sequence of the seed; 0 by default. */
  readonly firstEpisodeIndex?: Integer | undefined;
  /** The number of steps at which an episode is truncated; the server's setting by default. */
  readonly maxEpisodeLength?: Integer | undefined;
  /** The policy version that acts; the current one by default. */
  readonly policyVersion?: Integer | undefined;
  /** The environment version to act in; the current one by default. */
  readonly envVersion?: Integer | undefined;
  /** The policy version that has to be current; by default the one that this client set last. */
  readonly expectedPolicyVersion?: Integer | undefined;
  /** The environment version that has to be current; by default the one that this client set last. */
  readonly expectedEnvVersion?: Integer | undefined;
  /** The oldest policy version that may act. */
  readonly minPolicyVersion?: Integer | undefined;
  /** Whether the agent acts without randomness. */
  readonly deterministic?: boolean | undefined;
  /** The divisor of the logits; of n numbers, the episode of index i has the number at position i modulo n. */
  readonly temperature?: number | readonly number[] | undefined;
  /** The factor of the standard deviations of actions; one or more, as in `temperature`. */
  readonly noiseScale?: number | readonly number[] | undefined;
  /** The probability of random actions of an epsilon-greedy agent; one or more, as in `temperature`. */
  readonly epsilon?: number | readonly number[] | undefined;
  /** Whether to skip episodes whose environments raise errors in every attempt, instead of failing. */
  readonly skipFailedEpisodes?: boolean | undefined;
}

/** Options of calls that sample; `SamplingOptions` in sampler_service.proto describes them in full. */
export interface SamplingOptions extends EpisodeOptions {
  /** An update of the agent, of at most 4 MiB, which the call makes before it samples with the new version. */
  readonly agent?: AgentUpdate | undefined;
  /** The number of workers that the sampler has to have. */
  readonly expectedNumWorkers?: number | undefined;
  /** Codecs that columns may have, the preferred one first; by default those given to `connect`. */
  readonly compression?: Compression | readonly Compression[] | undefined;
  /** Whether each frame of stacks of frames is sent once; the stacks are restored. True by default. */
  readonly framesOnce?: boolean | undefined;
  /** Whether workers sample after the call what the same call would deliver next. */
  readonly prefetch?: boolean | undefined;
  /** Whether agentInfos hold the recurrent state before each step, as `state/NAME`. */
  readonly returnStates?: boolean | undefined;
  /** Whether the batch has `lastValues`; the agent needs an info `value`. */
  readonly returnLastValues?: boolean | undefined;
  /** Whether the batch has `lastStates`. */
  readonly returnLastStates?: boolean | undefined;
  /**
   * The names of the policies whose segments are delivered, in an environment with many agents; all by default. The
   * others act alike, and their steps count.
   */
  readonly deliver?: readonly string[] | undefined;
  /**
   * What `numSteps` of calls for whole episodes counts: the environment's steps, or those of all agents, also of those
   * whose policies are not delivered. The environment's by default.
   */
  readonly count?: "envSteps" | "agentSteps" | undefined;
  /** For streams: whether to discard what is sampled, to measure sampling alone. */
  readonly blackhole?: boolean | undefined;
}

/** Options of calls that sample fragments. */
export interface FragmentOptions extends SamplingOptions {
  /** Whether an episode that reaches `maxEpisodeLength` ends without a reset. */
  readonly softHorizon?: boolean | undefined;
  /** With a seed: the number of steps that each row has made, which the call starts at. */
  readonly rowStepCount?: Integer | undefined;
  /** The fraction of the workers that have to make all their steps; 1 by default. */
  readonly fractionOfWorkers?: number | undefined;
}

/** Options of calls that evaluate; `EvaluationOptions` in sampler_service.proto describes them in full. */
export interface EvaluationOptions extends EpisodeOptions {
  /** Another environment to act in: an id or a specification. */
  readonly env?: string | EnvSpec | undefined;
  /**
   * Maps from agents to policies for this evaluation alone, at most 4096: the episode of index i has the map at
   * position i modulo their number. The sampler's own map by default.
   */
  readonly policyMaps?: readonly PolicyMap[] | undefined;
  /** Whether the result includes the episodes themselves. */
  readonly returnEpisodes?: boolean | undefined;
}

/** Options of a session; `DriveSpec` in sampler_service.proto describes them in full. */
export interface DriveOptions extends CallOptions {
  /** The root seed of the episodes, from 0 to 2^64 - 1; by default, they are new ones. */
  readonly seed?: Integer | undefined;
  /**
   * The number of steps of each row in a recorded fragment; 128 by default. After a loss, a worker makes at most so
   * many steps again.
   */
  readonly fragmentLength?: Integer | undefined;
  /** The number of steps at which an episode is truncated; the server's setting by default. */
  readonly maxEpisodeLength?: Integer | undefined;
  /**
   * The infos that come with a row's actions, by name, for `agentInfos` of the recorded batches:
   * `{ log_prob: { dtype: "float32" } }`. None by default.
   */
  readonly agentInfos?: Readonly<Record<string, RowForm>> | undefined;
  /** Whether each step has the environments' infos. */
  readonly infos?: boolean | undefined;
  /** Whether the steps are recorded, for `session.batch`; true by default. */
  readonly record?: boolean | undefined;
  /** The number of rows that are enough for a step of `session.recv`; by default, all rows step together. */
  readonly minReady?: Integer | undefined;
  /**
   * How long the session outlives its connection, at most 3600: it goes on by itself when the server is in reach again,
   * and `sampler.resumeSession` takes it up in another process. 0 by default.
   */
  readonly leaseSeconds?: number | undefined;
  /** The environment version to act in; the current one by default. */
  readonly envVersion?: Integer | undefined;
}

/** Forms in which a client receives results. */
export interface Reception {
  /** The size of the largest message, in bytes. */
  readonly maxMessageBytes: number;
  /** Codecs for columns in calls that name none. */
  readonly codecs: readonly Codec[];
}

/**
 * Return the options of a call that samples as a message.
 *
 * @throws InvalidArgumentError - A value that the wire cannot carry.
 */
export function samplingOptionsToMessage(options: SamplingOptions, reception: Reception): SamplingOptionsMessage {
  const { compression } = options;
  return create(SamplingOptionsSchema, {
    ...episodeOptions(options),
    ...defined({
      firstEpisodeIndex: uint64("firstEpisodeIndex", options.firstEpisodeIndex),
      workerCount: uint32("expectedNumWorkers", options.expectedNumWorkers),
      agentUpdate: sentAgentUpdate(options),
    }),
    maxMessageBytes: reception.maxMessageBytes,
    acceptCompression: compression === undefined ? [...reception.codecs] : toCodecs(compression),
    acceptFrameStacks: options.framesOnce ?? true,
    prefetch: options.prefetch ?? false,
    blackhole: options.blackhole ?? false,
    returnStates: options.returnStates ?? false,
    returnLastValues: options.returnLastValues ?? false,
    returnLastStates: options.returnLastStates ?? false,
    returnReturnsBefore: true,
    acceptJoined: true,
    deliverPolicies: [...(options.deliver ?? [])],
    countAgentSteps: options.count === "agentSteps",
  });
}

/**
 * Return what a session drives as a message.
 *
 * @throws InvalidArgumentError - A value that the wire cannot carry.
 */
export function driveOptionsToMessage(sampler: string, options: DriveOptions, reception: Reception): DriveSpec {
  const { seed, maxEpisodeLength, envVersion, record = true } = options;
  const sampling = samplingOptionsToMessage({ seed, maxEpisodeLength, envVersion, blackhole: !record }, reception);
  sampling.returnSpaces = true;
  sampling.acceptJoined = false;
  const infos = Object.entries(options.agentInfos ?? {});
  const withoutRows = infos.map(([name, { dtype, shape = [] }]) => {
    return [name, new Tensor(dtype, [0, ...shape], new Uint8Array())] as const;
  });
  return create(DriveSpecSchema, {
    sampler,
    options: sampling,
    fragmentLength: int64("fragmentLength", options.fragmentLength ?? 128),
    agentInfos: namedTensorsToMessages(withoutRows),
    returnInfos: options.infos ?? false,
    minReadyRowCount: uint64("minReady", options.minReady ?? 0),
    leaseSeconds: options.leaseSeconds ?? 0,
  });
}

/**
 * Return the options of a call that evaluates as a message.
 *
 * @throws InvalidArgumentError - A value that the wire cannot carry.
 */
export function evaluationOptionsToMessage(options: EvaluationOptions): EvaluationOptionsMessage {
  const { env } = options;
  const spec = typeof env === "string" ? { id: env } : env;
  return create(EvaluationOptionsSchema, {
    ...episodeOptions(options),
    ...defined({ environment: spec === undefined ? undefined : envSpecToMessage(spec) }),
    firstEpisodeIndex: uint64("firstEpisodeIndex", options.firstEpisodeIndex ?? 0n),
    policyMaps: (options.policyMaps ?? []).map(policyMapToMessage),
  });
}

type Defined<T> = { [K in keyof T]?: Exclude<T[K], undefined> };

/** Return an object without the properties that are undefined, as messages want it. */
export function defined<T extends object>(values: T): Defined<T> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as Defined<T>;
}

/** The fields that the messages of both kinds of options share. */
interface EpisodeFields {
  seed?: bigint;
  maxEpisodeLength?: bigint;
  policyVersion?: bigint;
  environmentVersion?: bigint;
  expectedPolicyVersion?: bigint;
  expectedEnvironmentVersion?: bigint;
  minPolicyVersion?: bigint;
  exploration?: Exploration;
  skipFailedEpisodes?: boolean;
}

function episodeOptions(options: EpisodeOptions): EpisodeFields {
  return defined({
    seed: uint64("seed", options.seed),
    maxEpisodeLength: int64("maxEpisodeLength", options.maxEpisodeLength),
    policyVersion: int64("policyVersion", options.policyVersion),
    environmentVersion: int64("envVersion", options.envVersion),
    expectedPolicyVersion: int64("expectedPolicyVersion", options.expectedPolicyVersion),
    expectedEnvironmentVersion: int64("expectedEnvVersion", options.expectedEnvVersion),
    minPolicyVersion: int64("minPolicyVersion", options.minPolicyVersion),
    exploration: explorationOf(options),
    skipFailedEpisodes: options.skipFailedEpisodes,
  });
}

/** Return how freely the agent acts, if the options say anything about it. */
function explorationOf({ deterministic, temperature, noiseScale, epsilon }: EpisodeOptions): Exploration | undefined {
  if (deterministic !== true && [temperature, noiseScale, epsilon].every((value) => value === undefined)) {
    return undefined;
  }
  const numbers = (value: number | readonly number[] = []): number[] =>
    typeof value === "number" ? [value] : [...value];
  return create(ExplorationSchema, {
    deterministic: deterministic ?? false,
    temperatures: numbers(temperature),
    noiseScales: numbers(noiseScale),
    epsilons: numbers(epsilon),
  });
}

/** Return the update that a call makes, if the options have one, whose size a call may have. */
function sentAgentUpdate(options: SamplingOptions): AgentUpdateMessage | undefined {
  const { agent, policyVersion, minPolicyVersion, expectedPolicyVersion, expectedEnvVersion } = options;
  if (agent === undefined) {
    return undefined;
  }
  const versions = { policyVersion, minPolicyVersion, expectedPolicyVersion, expectedEnvVersion };
  for (const [name, value] of Object.entries(versions)) {
    if (value !== undefined) {
      throw InvalidArgumentError.of(name, "none beside an agent", value);
    }
  }
  const update = agentUpdateToMessage(agent);
  const byteLength = toBinary(AgentUpdateSchema, update).byteLength;
  if (byteLength > MAX_AGENT_BYTES) {
    const expected = `at most ${String(MAX_AGENT_BYTES)} bytes in a call that samples`;
    throw InvalidArgumentError.of("agent", expected, `${String(byteLength)} bytes`, "call updateAgent first");
  }
  return update;
}
