/**
 * State of a sampler and of its workers.
 *
 * @packageDocumentation
 */

import { secondsOf } from "./account.js";
import { envSpecFromMessage, type EnvSpec } from "./environments.js";
import {
  WorkerHealth as WorkerHealthNumber,
  type Counters as CountersMessage,
  type GetSamplerResponse,
  type Worker,
} from "./generated/rollserve/v1/sampler_service_pb.js";
import { kwargsFromJson, type Kwargs } from "./json_arguments.js";
import { reproducibilityFrom, type Reproducibility } from "./reproducibility.js";
import { spaceFromMessage, type Space } from "./spaces.js";

/** Whether a worker accepts work; `unknown` is a state of newer servers. */
export type WorkerHealth = "healthy" | "lost" | "failed" | "leaving" | "unknown";

/** The state of a worker. */
export interface WorkerStatus {
  /** The index of the worker, from 0. */
  readonly workerIndex: number;
  /** Whether the worker accepts work. */
  readonly health: WorkerHealth;
  /** The number of environments that the worker steps at once. */
  readonly numRows: number;
  /** The steps that the worker has simulated. */
  readonly numSimulatedSteps: bigint;
  /** The id of the worker's process; 0 if it has never started, or for clients on other machines. */
  readonly processId: number;
  /** The worker's machine; empty if it has never started, or for clients on other machines. */
  readonly host: string;
  /** The number of times that the worker was replaced, failed attempts included. */
  readonly numRestarts: bigint;
  /** Why the last process of this worker was lost or could not be started; empty if that never happened. */
  readonly lastFailure: string;
}

/** Counters of a sampler since its start. */
export interface Counters {
  /** Sampling calls that completed. */
  readonly numCompletedCalls: bigint;
  /** Sampling calls that ended with an error. */
  readonly numFailedCalls: bigint;
  /** Sampling calls that their client, a deadline or the server's stop ended. */
  readonly numCancelledCalls: bigint;
  /** Steps delivered. */
  readonly numSteps: bigint;
  /** Episodes delivered. */
  readonly numEpisodes: bigint;
  /** Steps simulated. */
  readonly numSimulatedSteps: bigint;
  /** Bytes of messages delivered. */
  readonly messageBytes: bigint;
  /** The age of the sampler. */
  readonly uptimeSeconds: number;
  /** The number of times that workers were replaced. */
  readonly numWorkerRestarts: bigint;
  /** Errors that environments raised in episodes. */
  readonly numEnvFailures: bigint;
  /** Episodes that were retried because something had failed. */
  readonly numRetriedEpisodes: bigint;
  /** Episodes that were skipped. */
  readonly numFailedEpisodes: bigint;
  /** Episodes that were started a second time on another worker although nothing had failed. */
  readonly numStragglerEpisodes: bigint;
  /** Steps delivered with a NaN or an infinity. */
  readonly numNonFiniteSteps: bigint;
}

/** An environment that the server's operator has declared; `profile:NAME` requests it. */
export interface EnvProfile {
  /** The name of the profile. */
  readonly name: string;
  /** The operator's text about it. */
  readonly description: string;
  /** The JSON Schema of the arguments that it accepts. */
  readonly argumentsSchema: Kwargs;
}

/** The state of a sampler. */
export interface SamplerStatus {
  /** The name of the sampler. */
  readonly sampler: string;
  /** The version of the server's software. */
  readonly serverVersion: string;
  /** One environment for all workers; or one for each worker; or one for each row, worker by worker. */
  readonly envs: readonly EnvSpec[];
  /** The version of the environments; 1 for the first. */
  readonly envVersion: bigint;
  /** The space of observations. */
  readonly observationSpace: Space;
  /** The space of actions. */
  readonly actionSpace: Space;
  /** The kind of each worker's agent, or one kind for all; empty before the first agent. */
  readonly agentKinds: readonly string[];
  /** The version of the policy; 0 before the first agent. */
  readonly policyVersion: bigint;
  /** The current version of each policy by its name, where the agent is policies by name; else empty. */
  readonly policies: ReadonlyMap<string, bigint>;
  /** How long ago the policy was set; 0 before the first agent. */
  readonly policyAgeSeconds: number;
  /** Which unit of work the same seed gives again. */
  readonly reproducibility: Reproducibility;
  /** The number of episodes of each row in a block; undefined unless the class is `block`. */
  readonly numEpisodesPerRow: number | undefined;
  /** The root seed of the sampler's own sequence of episodes. */
  readonly seed: bigint;
  /** The index in that sequence at which the next call begins. */
  readonly nextEpisodeIndex: bigint;
  /** The workers, in the order of their indices, followed by workers that are leaving. */
  readonly workers: readonly WorkerStatus[];
  /** The number of workers for calls that begin now. */
  readonly numWorkers: number;
  /** The number of workers that have to be healthy for a call or an update to begin. */
  readonly minHealthyWorkers: number;
  /** Counters since the sampler's start. */
  readonly counters: Counters;
  /** The names of the arguments that are left out of `envs`, such as `kwargs.level`. */
  readonly hiddenArguments: readonly string[];
  /** Environments that the server's operator has declared. */
  readonly profiles: readonly EnvProfile[];
  /** The number of sampling calls and evaluations that run. */
  readonly numRunningCalls: number;
  /** The number of sampling calls and evaluations that queue or are paused. */
  readonly numQueuedCalls: number;
  /** The principal that created the sampler; empty for the default one. */
  readonly owner: string;
  /** The time without a call after which the sampler is deleted; undefined for never. */
  readonly leaseSeconds: number | undefined;
}

/** Return the status that a message describes. */
export function statusFromMessage(message: GetSamplerResponse): SamplerStatus {
  const workers = message.workers.map(workerFrom);
  return {
    sampler: message.sampler,
    serverVersion: message.serverVersion,
    envs: message.environments.map(envSpecFromMessage),
    envVersion: message.environmentVersion,
    observationSpace: spaceFromMessage(message.observationSpace),
    actionSpace: spaceFromMessage(message.actionSpace),
    agentKinds: message.agentKinds,
    policyVersion: message.policyVersion,
    policies: new Map(Object.entries(message.policies)),
    policyAgeSeconds: secondsOf(message.policyAge),
    reproducibility: reproducibilityFrom(message.reproducibility),
    numEpisodesPerRow: message.episodesPerRow === 0 ? undefined : message.episodesPerRow,
    seed: message.seed,
    nextEpisodeIndex: message.nextEpisodeIndex,
    workers,
    numWorkers: workers.filter(({ health }) => health !== "leaving").length,
    minHealthyWorkers: message.minHealthyWorkerCount,
    counters: countersFrom(message.counters),
    hiddenArguments: message.hiddenArguments,
    profiles: message.profiles.map(({ name, description, argumentsSchemaJson }) => ({
      name,
      description,
      argumentsSchema: kwargsFromJson(argumentsSchemaJson),
    })),
    numRunningCalls: message.runningCallCount,
    numQueuedCalls: message.queuedCallCount,
    owner: message.owner,
    leaseSeconds: message.lease === undefined ? undefined : secondsOf(message.lease),
  };
}

function workerFrom(worker: Worker): WorkerStatus {
  return {
    workerIndex: worker.workerIndex,
    health: healthFrom(worker.health),
    numRows: worker.rowCount,
    numSimulatedSteps: worker.simulatedStepCount,
    processId: worker.processId,
    host: worker.host,
    numRestarts: worker.restartCount,
    lastFailure: worker.lastFailure,
  };
}

function healthFrom(health: WorkerHealthNumber): WorkerHealth {
  switch (health) {
    case WorkerHealthNumber.HEALTHY:
      return "healthy";
    case WorkerHealthNumber.LOST:
      return "lost";
    case WorkerHealthNumber.FAILED:
      return "failed";
    case WorkerHealthNumber.LEAVING:
      return "leaving";
    default:
      return "unknown";
  }
}

function countersFrom(counters: CountersMessage | undefined): Counters {
  return {
    numCompletedCalls: counters?.completedCallCount ?? 0n,
    numFailedCalls: counters?.failedCallCount ?? 0n,
    numCancelledCalls: counters?.cancelledCallCount ?? 0n,
    numSteps: counters?.stepCount ?? 0n,
    numEpisodes: counters?.episodeCount ?? 0n,
    numSimulatedSteps: counters?.simulatedStepCount ?? 0n,
    messageBytes: counters?.messageBytes ?? 0n,
    uptimeSeconds: secondsOf(counters?.uptime),
    numWorkerRestarts: counters?.workerRestartCount ?? 0n,
    numEnvFailures: counters?.environmentFailureCount ?? 0n,
    numRetriedEpisodes: counters?.retriedEpisodeCount ?? 0n,
    numFailedEpisodes: counters?.failedEpisodeCount ?? 0n,
    numStragglerEpisodes: counters?.stragglerEpisodeCount ?? 0n,
    numNonFiniteSteps: counters?.nonFiniteStepCount ?? 0n,
  };
}
