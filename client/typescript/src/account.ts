/**
 * Accounts: what became of everything that was simulated for a call.
 *
 * @packageDocumentation
 */

import type { Duration } from "@bufbuild/protobuf/wkt";

import type { Account as AccountMessage } from "./generated/rollserve/v1/episode_batch_pb.js";

/** One worker's share in a call. */
export interface WorkerAccount {
  /** The index of the worker. */
  readonly workerIndex: number;
  /** Steps that the worker simulated while the call ran. */
  readonly numSimulatedSteps: bigint;
  /** Delivered steps that the worker simulated. */
  readonly numSteps: bigint;
  /** Delivered episodes that the worker simulated. */
  readonly numEpisodes: bigint;
  /** The time spent on stepping environments and evaluating the policy. */
  readonly samplingSeconds: number;
  /** The time spent on writing messages. */
  readonly encodingSeconds: number;
  /** For fragments, steps of the worker's share that it did not make because enough other workers were done. */
  readonly numMissingSteps: bigint;
}

/** An episode whose environment raised an error. */
export interface EpisodeFailure {
  /** The index of the episode; for a block, the lowest index among its episodes that had not ended. */
  readonly episodeIndex: bigint;
  /** The worker that ran the episode last. */
  readonly workerIndex: number;
  /** The number of failed attempts on that worker. */
  readonly numAttempts: number;
  /** Whether the call skipped the episode. */
  readonly skipped: boolean;
  /** Where the environment raised its last error, and the error. */
  readonly text: string;
}

/**
 * The account of everything that was simulated for a call.
 *
 * Carried and simulated steps together equal the delivered, kept, superseded, cancelled, lost, idle and discarded
 * steps.
 */
export interface Account {
  /** Steps delivered. */
  readonly numSteps: bigint;
  /** Episodes delivered; for fragments, the episodes that ended in this call. */
  readonly numEpisodes: bigint;
  /** Steps simulated while the call ran, for it and beyond its end. */
  readonly numSimulatedSteps: bigint;
  /** Steps simulated earlier that are settled in this account, or delivered before an interruption. */
  readonly numCarriedSteps: bigint;
  /** Steps of episodes beyond the last delivered one, kept for the next call. */
  readonly numKeptSteps: bigint;
  /** Discarded steps that earlier calls had kept and that no call can use any more. */
  readonly numSupersededSteps: bigint;
  /** Discarded steps of calls that were cancelled or failed. */
  readonly numCancelledSteps: bigint;
  /** Discarded steps whose worker is gone, whose environment failed, or which another worker finished first. */
  readonly numLostSteps: bigint;
  /** Discarded steps of rows that are stepped together and had to continue with the others. */
  readonly numIdleSteps: bigint;
  /** Carried steps that were simulated between calls, because of `prefetch`. */
  readonly numPrefetchedSteps: bigint;
  /** Steps discarded because of `blackhole`, or by an evaluation that returns no episodes. */
  readonly numDiscardedSteps: bigint;
  /** Episodes that ended in these steps. */
  readonly numDiscardedEpisodes: bigint;
  /** Retries of episodes after something had failed. */
  readonly numRetriedEpisodes: bigint;
  /** The number of retries by reason, such as `environment_failed` or `worker_lost`. */
  readonly retryReasons: Readonly<Record<string, bigint>>;
  /** Episodes that were started a second time on another worker, because the first run took far longer than others. */
  readonly numStragglerEpisodes: bigint;
  /** For fragments with `fractionOfWorkers`, requested steps that were not made. */
  readonly numMissingSteps: bigint;
  /** For exact episodes, delivered episodes that another worker simulated than the one in `workerIndices`. */
  readonly numReassignedEpisodes: bigint;
  /** Episodes that the call skipped, with `skipFailedEpisodes`. */
  readonly numFailedEpisodes: bigint;
  /** The first 64 episodes whose environments raised errors. */
  readonly episodeFailures: readonly EpisodeFailure[];
  /** For fragments, episodes that broke off because their rows could not be restored. */
  readonly numBrokenOffEpisodes: bigint;
  /** Delivered steps with a NaN or an infinity in their reward or an observation; after an interruption, since then. */
  readonly numNonFiniteSteps: bigint;
  /** For fragments, the number of steps that each row had made in the sequence before the call. */
  readonly rowStepCount: bigint;
  /** The interruptions of the stream, each followed by another call that continued it. */
  readonly numResumptions: number;
  /** The root seed of the sequence of episodes. */
  readonly seed: bigint;
  /** The index of the first delivered episode; 0 for fragments. */
  readonly firstEpisodeIndex: bigint;
  /** The version of the policy that acted. */
  readonly policyVersion: bigint;
  /** The version of the environment. */
  readonly envVersion: bigint;
  /** The number of values that the batch lacks because they are no numbers or not of one shape, by the info's name. */
  readonly droppedInfos: Readonly<Record<string, bigint>>;
  /** Each worker's share. */
  readonly workers: readonly WorkerAccount[];
  /** The time in the queue until admission. */
  readonly queuedSeconds: number;
  /** The time spent waiting for workers, after admission. */
  readonly waitingSeconds: number;
  /** The time spent waiting for the client to read messages. */
  readonly sendingSeconds: number;
  /** The time on the server since admission. */
  readonly elapsedSeconds: number;
}

/** Return the account that a message describes. */
export function accountFromMessage(message: AccountMessage): Account {
  return {
    numSteps: message.stepCount,
    numEpisodes: message.episodeCount,
    numSimulatedSteps: message.simulatedStepCount,
    numCarriedSteps: message.carriedStepCount,
    numKeptSteps: message.keptStepCount,
    numSupersededSteps: message.supersededStepCount,
    numCancelledSteps: message.cancelledStepCount,
    numLostSteps: message.lostStepCount,
    numIdleSteps: message.idleStepCount,
    numPrefetchedSteps: message.prefetchedStepCount,
    numDiscardedSteps: message.discardedStepCount,
    numDiscardedEpisodes: message.discardedEpisodeCount,
    numRetriedEpisodes: message.retriedEpisodeCount,
    retryReasons: message.retryReasons,
    numStragglerEpisodes: message.stragglerEpisodeCount,
    numMissingSteps: message.missingStepCount,
    numReassignedEpisodes: message.reassignedEpisodeCount,
    numFailedEpisodes: message.failedEpisodeCount,
    episodeFailures: message.episodeFailures.map((failure) => ({
      episodeIndex: failure.episodeIndex,
      workerIndex: failure.workerIndex,
      numAttempts: failure.attemptCount,
      skipped: failure.skipped,
      text: failure.text,
    })),
    numBrokenOffEpisodes: message.brokenOffEpisodeCount,
    numNonFiniteSteps: message.nonFiniteStepCount,
    rowStepCount: message.rowStepCount,
    numResumptions: 0,
    seed: message.seed,
    firstEpisodeIndex: message.firstEpisodeIndex,
    policyVersion: message.policyVersion,
    envVersion: message.environmentVersion,
    droppedInfos: message.droppedInfos,
    workers: message.workers.map((worker) => ({
      workerIndex: worker.workerIndex,
      numSimulatedSteps: worker.simulatedStepCount,
      numSteps: worker.stepCount,
      numEpisodes: worker.episodeCount,
      samplingSeconds: secondsOf(worker.sampling),
      encodingSeconds: secondsOf(worker.encoding),
      numMissingSteps: worker.missingStepCount,
    })),
    queuedSeconds: secondsOf(message.queued),
    waitingSeconds: secondsOf(message.waiting),
    sendingSeconds: secondsOf(message.sending),
    elapsedSeconds: secondsOf(message.elapsed),
  };
}

/** Return the seconds of a duration; 0 if it is not set. */
export function secondsOf(duration: Duration | undefined): number {
  return duration === undefined ? 0 : Number(duration.seconds * 1_000_000_000n + BigInt(duration.nanos)) / 1e9;
}
