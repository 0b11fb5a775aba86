/**
 * Client of a sampler on a server.
 *
 * @packageDocumentation
 */

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";

import { Agent, AgentChange, agentUpdateToMessage, Policies, type AgentUpdate } from "./agents.js";
import { OF_MANY_AGENTS, OF_ONE_AGENT, type AnyBatch, type BatchKind } from "./batch_kinds.js";
import { toCodecs, type Compression } from "./compression.js";
import { closedError, Connection, type ConnectionOptions, type RpcName } from "./connection.js";
import {
  envUpdateResultFrom,
  envUpdateToMessage,
  keepsAny,
  type EnvUpdate,
  type EnvUpdateResult,
} from "./environments.js";
import type { EpisodeBatch } from "./episode_batch.js";
import { malformed, mismatch, ServerError } from "./errors.js";
import type { Beginning } from "./generated/rollserve/v1/episode_batch_pb.js";
import { EvaluationReader, type Evaluation } from "./evaluation.js";
import {
  AgentUpdatePerWorkerSchema,
  CallEnvironmentsRequestSchema,
  CallEnvironmentsResponseSchema,
  DriveResumptionSchema,
  EvaluateRequestSchema,
  GetSamplerRequestSchema,
  GetSamplerResponseSchema,
  FragmentsSchema,
  ObtainExactEpisodesRequestSchema,
  ObtainSamplesRequestSchema,
  UpdateAgentRequestSchema,
  UpdateAgentResponseSchema,
  UpdateEnvRequestSchema,
  UpdateEnvResponseSchema,
  type ObtainExactEpisodesRequest,
  type ObtainSamplesRequest,
  type UpdateAgentRequest,
} from "./generated/rollserve/v1/sampler_service_pb.js";
import { int64, positiveSeconds, uint32, uint64, type Integer } from "./integers.js";
import { valueToJson, type Json } from "./json_arguments.js";
import { MultiAgentSampler } from "./multi_agent_sampler.js";
import {
  DEFAULT_MESSAGE_BYTES,
  defined,
  driveOptionsToMessage,
  evaluationOptionsToMessage,
  samplingOptionsToMessage,
  type CallOptions,
  type DriveOptions,
  type EpisodeOptions,
  type EvaluationOptions,
  type FragmentOptions,
  type Reception,
  type SamplingOptions,
} from "./options.js";
import { OwnVersions } from "./own_versions.js";
import { parametersUpdateToBytes } from "./parameter_updates.js";
import { Receiver } from "./receiver.js";
import type { SamplingRequest } from "./resumption.js";
import { SampleStream } from "./sample_stream.js";
import { Session } from "./session.js";
import { statusFromMessage, type SamplerStatus } from "./status.js";
import { DEFAULT_TIMEOUT_SECONDS, MAKING_SECONDS, TimeLimits } from "./time_limits.js";

/** RPCs for which servers make environments. */
const MAKING_ENVS: readonly RpcName[] = ["UpdateEnv", "CallEnvironments"];

/** Arguments of {@link connect} beside the target. */
export interface ConnectOptions extends ConnectionOptions {
  /** The name of the sampler; the default one by default. */
  readonly sampler?: string | undefined;
  /**
   * Seconds that an update may take, and that a sampling call may go without any progress; 60 by default. `updateEnv`
   * and `callEnvironments`, for which servers make environments, may take 10 minutes more while the server can be
   * reached, unless they have a `timeoutSeconds` of their own.
   */
  readonly timeoutSeconds?: number | undefined;
  /** The size of the largest message to receive, in bytes; 8 MiB by default. */
  readonly maxMessageBytes?: number | undefined;
  /** Codecs that columns may have, the preferred one first; none by default. */
  readonly compression?: Compression | readonly Compression[] | undefined;
  /**
   * Whether the client uses agents and environments that other clients of the same sampler set. By default, calls fail
   * with a PreconditionError (`UNEXPECTED_VERSION`) once another client has replaced or changed what this client set.
   */
  readonly shared?: boolean | undefined;
}

/** Updates that differ between workers: one for each worker, in the order of their indices. */
export interface PerWorker<T> {
  /** The updates; null leaves a worker's agent or environments as they are. */
  readonly perWorker: readonly (T | null)[];
}

/** Options of a call of the environments' methods. */
export interface CallEnvironmentsOptions extends CallOptions {
  /** The version of the environments; the current one by default. */
  readonly envVersion?: Integer | undefined;
}

/** Options of an update of the agent. */
export interface UpdateAgentOptions extends CallOptions {
  /** Whether to do nothing if the update would leave each worker's agent the same, bit for bit. */
  readonly skipIfIdentical?: boolean | undefined;
}

/**
 * Return a sampler on the server at `target`. The first call opens the connection.
 *
 * @example
 * ```ts
 * await using sampler = connect("127.0.0.1:50051");
 * await sampler.updateAgent(new RandomAgent());
 * const batch = await sampler.obtainSamples(10_000);
 * ```
 *
 * @param target - The address of the server: `host:port`, or a name with one of gRPC's schemes, such as `unix:/a/path`.
 * @param options - TLS, token, time limits and others.
 * @throws InvalidArgumentError - An argument with an invalid value, or a codec whose package is not installed.
 */
export function connect(target: string, options: ConnectOptions = {}): Sampler {
  return new Sampler(target, options);
}

/**
 * Client of a sampler: sends agents and environments, and receives episodes.
 *
 * All methods fail with a `RollserveError` if the call does; its subclasses say what the caller can do. An update that
 * fails changes nothing on the server. Calls sample with the agent and the environment that this client set, or fail
 * with a PreconditionError (`UNEXPECTED_VERSION`) if another client has updated them since, unless `shared` is set.
 */
export class Sampler implements AsyncDisposable {
  /** The calls for environments with many agents, which return batches of many agents. */
  readonly multiAgent = new MultiAgentSampler({
    samples: (numSteps, options) => this.#stream(this.#samplesRequest(numSteps, options), options, OF_MANY_AGENTS),
    exactEpisodes: (numEpisodesPerWorker, options) =>
      this.#stream(this.#exactEpisodesRequest(numEpisodesPerWorker, options), options, OF_MANY_AGENTS),
    fragments: (numSteps, options) => this.#stream(this.#fragmentsRequest(numSteps, options), options, OF_MANY_AGENTS),
  });

  readonly #connection: Connection;
  readonly #name: string;
  readonly #timeoutSeconds: number;
  readonly #reception: Reception;
  readonly #ownVersions: OwnVersions;

  /** @internal */
  constructor(target: string, options: ConnectOptions) {
    const maxMessageBytes = uint32("maxMessageBytes", options.maxMessageBytes ?? DEFAULT_MESSAGE_BYTES);
    this.#name = options.sampler ?? "";
    this.#timeoutSeconds = positiveSeconds("timeoutSeconds", options.timeoutSeconds ?? DEFAULT_TIMEOUT_SECONDS);
    this.#reception = { maxMessageBytes, codecs: toCodecs(options.compression) };
    this.#ownVersions = new OwnVersions(options.shared ?? false);
    this.#connection = new Connection(target, this.#name, maxMessageBytes, options);
  }

  /** Close the connection. Calls that are running, and later ones, fail with a CancelledError. */
  close(): void {
    this.#connection.close();
  }

  /** Close the connection. */
  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  /**
   * Give the workers a new agent, or new parameters for the present one.
   *
   * @param update - A whole agent, or parameters by name for the present agent: all of an MLP, any of an ONNX or Python
   * agent; or an `AgentChange`; or `Policies` by name. `perWorker` has one such update for each worker instead.
   * @param options - See {@link UpdateAgentOptions}.
   * @returns The new policy version, once every worker has it; or the current version, if nothing was done.
   */
  async updateAgent(update: AgentUpdate | PerWorker<AgentUpdate>, options: UpdateAgentOptions = {}): Promise<bigint> {
    const updates = isPerWorker(update) ? update.perWorker : [update];
    const request = create(UpdateAgentRequestSchema, {
      sampler: this.#name,
      skipIfIdentical: options.skipIfIdentical ?? false,
    });
    this.#ownVersions.expectInAgentUpdate(
      request,
      updates.some((each) => !(each instanceof Agent)),
    );
    const answer = await this.#call("UpdateAgent", agentUpdateRequestToBytes(request, update), options);
    const response = fromBinary(UpdateAgentResponseSchema, answer);
    this.#ownVersions.setAgent(response);
    return response.policyVersion;
  }

  /**
   * Replace or change the workers' environments.
   *
   * @param update - An id, a specification, a change of the present environment, or a list with one for each row.
   * `perWorker` has one such update for each worker instead.
   * @param options - See {@link CallOptions}.
   * @returns The new version and spaces, once every worker has its environments.
   */
  async updateEnv(update: EnvUpdate | PerWorker<EnvUpdate>, options: CallOptions = {}): Promise<EnvUpdateResult> {
    const messages = isPerWorker(update) ? update.perWorker.map(envUpdateToMessage) : [envUpdateToMessage(update)];
    const [single] = messages;
    const request = create(UpdateEnvRequestSchema, {
      sampler: this.#name,
      update:
        isPerWorker(update) || single === undefined
          ? { case: "perWorker", value: { updates: messages } }
          : { case: "allWorkers", value: single },
    });
    this.#ownVersions.expectInEnvUpdate(request, messages.some(keepsAny));
    const answer = await this.#call("UpdateEnv", toBinary(UpdateEnvRequestSchema, request), options);
    const result = envUpdateResultFrom(fromBinary(UpdateEnvResponseSchema, answer));
    this.#ownVersions.setEnv(result.envVersion);
    return result;
  }

  /**
   * Call a method of the workers' environments, which are made for the call.
   *
   * @param method - The name of a method of the environment or of a wrapper.
   * @param args - The method's arguments.
   * @param options - See {@link CallEnvironmentsOptions}.
   * @returns The values, one for each element of `envs` of the status.
   */
  async callEnvironments(
    method: string,
    args: readonly Json[] = [],
    options: CallEnvironmentsOptions = {},
  ): Promise<Json[]> {
    const request = create(CallEnvironmentsRequestSchema, {
      sampler: this.#name,
      method,
      argumentsJson: args.map((argument) => valueToJson("args", argument)),
      ...defined({ environmentVersion: int64("envVersion", options.envVersion) }),
    });
    this.#ownVersions.expectInEnvCall(request);
    const answer = await this.#call("CallEnvironments", toBinary(CallEnvironmentsRequestSchema, request), options);
    const { valuesJson } = fromBinary(CallEnvironmentsResponseSchema, answer);
    return valuesJson.map((text) => JSON.parse(text) as Json);
  }

  /** Sample whole episodes with at least `numSteps` steps in all. */
  async obtainSamples(numSteps: Integer, options: SamplingOptions = {}): Promise<EpisodeBatch> {
    return this.streamSamples(numSteps, options).join();
  }

  /** Sample an exact number of episodes on each worker: first all of worker 0, then all of worker 1, and so on. */
  async obtainExactEpisodes(numEpisodesPerWorker: Integer, options: SamplingOptions = {}): Promise<EpisodeBatch> {
    return this.streamExactEpisodes(numEpisodesPerWorker, options).join();
  }

  /**
   * Sample exactly `numSteps` steps, the same number of each row; episodes continue from call to call.
   *
   * Each segment is a fragment: the part of an episode that this call delivers. `firstSteps` is the number of steps of
   * the episode that earlier calls delivered.
   *
   * @param numSteps - The number of steps; a multiple of the number of rows of all workers.
   * @param options - See {@link FragmentOptions}.
   */
  async obtainFragments(numSteps: Integer, options: FragmentOptions = {}): Promise<EpisodeBatch> {
    return this.streamFragments(numSteps, options).join();
  }

  /** Stream what `obtainSamples` returns, batch by batch as it arrives. */
  streamSamples(numSteps: Integer, options: SamplingOptions = {}): SampleStream {
    return this.#stream(this.#samplesRequest(numSteps, options), options, OF_ONE_AGENT);
  }

  /** Stream what `obtainExactEpisodes` returns, batch by batch as it arrives. */
  streamExactEpisodes(numEpisodesPerWorker: Integer, options: SamplingOptions = {}): SampleStream {
    return this.#stream(this.#exactEpisodesRequest(numEpisodesPerWorker, options), options, OF_ONE_AGENT);
  }

  /** Stream what `obtainFragments` returns, batch by batch as it arrives. */
  streamFragments(numSteps: Integer, options: FragmentOptions = {}): SampleStream {
    return this.#stream(this.#fragmentsRequest(numSteps, options), options, OF_ONE_AGENT);
  }

  /**
   * Evaluate the agent on a number of episodes, in environments that only evaluations use.
   *
   * An evaluation uses and changes nothing of the sampler's own, such as its sequence or its environments. Without a
   * seed, every evaluation plays the same episodes.
   */
  async evaluate(numEpisodes: Integer, options: EvaluationOptions = {}): Promise<Evaluation> {
    const { maxMessageBytes, codecs } = this.#reception;
    const episodes = { maxMessageBytes, acceptCompression: [...codecs], acceptFrameStacks: true };
    const request = create(EvaluateRequestSchema, {
      sampler: this.#name,
      episodeCount: uint32("numEpisodes", numEpisodes),
      options: evaluationOptionsToMessage(options),
      ...defined({ episodes: options.returnEpisodes === true ? episodes : undefined }),
    });
    if (request.options !== undefined) {
      this.#ownVersions.expectInCall(request.options);
    }
    const reader = new EvaluationReader(request);
    const receiver = new Receiver(this.#connection, "Evaluate", reader, this.#limits(options), options.signal);
    try {
      for (let message = await receiver.next(); message !== undefined; message = await receiver.next()) {
        reader.read(message);
      }
      return reader.result();
    } finally {
      receiver.stop(closedError("stream")); // where a message was malformed
    }
  }

  /**
   * Begin to act in all rows of the sampler's environments from here, step by step, in place of its agent.
   *
   * The same seed and the same actions give the same episodes, with any number of workers and after any crash. The
   * token needs the scope `drive`.
   */
  async drive(options: DriveOptions = {}): Promise<Session> {
    const spec = driveOptionsToMessage(this.#name, options, this.#reception);
    if (spec.options !== undefined) {
      this.#ownVersions.expectInCall(spec.options);
      delete spec.options.expectedPolicyVersion; // no agent of the sampler acts
    }
    return Session.begin(this.#connection, { case: "spec", value: spec }, this.#limits(options), options);
  }

  /**
   * Go on with a session that another client has begun with `leaseSeconds`, at the same step. That client loses it.
   * Rounds that it may not have got come again.
   *
   * @param token - The session's `token`.
   * @param options - Those that the session was begun with: `agentInfos`, `record` and `minReady` count, and the limits
   * of this call.
   * @throws InvalidArgumentError - With the reason SESSION_NOT_FOUND: it has ended, or belongs to another client.
   */
  async resumeSession(token: string, options: DriveOptions = {}): Promise<Session> {
    const value = create(DriveResumptionSchema, { sampler: this.#name, token });
    return Session.begin(this.#connection, { case: "resumption", value }, this.#limits(options), options);
  }

  /** Return the state of the sampler and of its workers, and its counters. */
  async status(options: CallOptions = {}): Promise<SamplerStatus> {
    const request = create(GetSamplerRequestSchema, { sampler: this.#name });
    const answer = await this.#call("GetSampler", toBinary(GetSamplerRequestSchema, request), options);
    return statusFromMessage(fromBinary(GetSamplerResponseSchema, answer));
  }

  #limits(options: EpisodeOptions): TimeLimits {
    return new TimeLimits(options.timeoutSeconds ?? this.#timeoutSeconds, options.deadlineSeconds);
  }

  #samplesRequest(numSteps: Integer, options: SamplingOptions): ObtainSamplesRequest {
    return create(ObtainSamplesRequestSchema, {
      sampler: this.#name,
      stepCount: int64("numSteps", numSteps),
      options: samplingOptionsToMessage(options, this.#reception),
    });
  }

  #exactEpisodesRequest(numEpisodesPerWorker: Integer, options: SamplingOptions): ObtainExactEpisodesRequest {
    return create(ObtainExactEpisodesRequestSchema, {
      sampler: this.#name,
      episodeCountPerWorker: int64("numEpisodesPerWorker", numEpisodesPerWorker),
      options: samplingOptionsToMessage(options, this.#reception),
    });
  }

  #fragmentsRequest(numSteps: Integer, options: FragmentOptions): ObtainSamplesRequest {
    const request = this.#samplesRequest(numSteps, options);
    request.fragments = create(FragmentsSchema, {
      softHorizon: options.softHorizon ?? false,
      ...defined({
        rowStepCount: uint64("rowStepCount", options.rowStepCount),
        fractionOfWorkers: options.fractionOfWorkers,
      }),
    });
    return request;
  }

  #stream<B extends AnyBatch>(request: SamplingRequest, options: SamplingOptions, kind: BatchKind<B>): SampleStream<B> {
    if (request.options !== undefined) {
      this.#ownVersions.expectInCall(request.options);
    }
    const onBeginning = (beginning: Beginning): void => {
      if (options.agent !== undefined) {
        checkAgentUpdated(beginning);
        this.#ownVersions.setAgent(beginning);
      }
    };
    return new SampleStream(this.#connection, request, this.#limits(options), options.signal, onBeginning, kind);
  }

  /** Make a call with a single answer, which is made again if a server that has answered before is lost. */
  async #call(rpc: RpcName, request: Uint8Array, options: CallOptions): Promise<Uint8Array> {
    const work = MAKING_ENVS.includes(rpc) && options.timeoutSeconds === undefined ? MAKING_SECONDS : 0;
    const limits = TimeLimits.forAnswer(options.timeoutSeconds ?? this.#timeoutSeconds, work);
    const attempts = { hasBegun: false, canRepeat: true, waitingFor: "", request: () => request };
    const receiver = new Receiver(this.#connection, rpc, attempts, limits, options.signal);
    try {
      const answer = await receiver.next();
      if ((await receiver.next()) !== undefined || answer === undefined) {
        throw malformed("expected one answer, got another number");
      }
      return answer;
    } finally {
      receiver.stop(closedError("stream")); // where there was another number of answers
    }
  }
}

/** Return a serialized request for an update of the agent, for the request without the update. */
function agentUpdateRequestToBytes(
  request: UpdateAgentRequest,
  update: AgentUpdate | PerWorker<AgentUpdate>,
): Uint8Array {
  if (isPerWorker(update)) {
    request.update = {
      case: "perWorker",
      value: create(AgentUpdatePerWorkerSchema, { updates: update.perWorker.map(agentUpdateToMessage) }),
    };
  } else if (update instanceof Agent || update instanceof AgentChange || update instanceof Policies) {
    request.update = { case: "allWorkers", value: agentUpdateToMessage(update) };
  } else {
    return parametersUpdateToBytes(request, update);
  }
  return toBinary(UpdateAgentRequestSchema, request);
}

/** Throw a ServerError if a server does not know agents of calls, and samples with the agent that is there. */
function checkAgentUpdated({ agentUpdated }: Beginning): void {
  if (!agentUpdated) {
    const expected = "a server that knows agents of calls";
    const text = `agent: ${mismatch(expected, "one of an earlier version")}: call updateAgent instead`;
    throw new ServerError(text, { code: "UNIMPLEMENTED", field: "agent" });
  }
}

function isPerWorker<T>(update: T | PerWorker<T>): update is PerWorker<T> {
  return typeof update === "object" && update !== null && "perWorker" in update && Array.isArray(update.perWorker);
}
