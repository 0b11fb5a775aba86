/**
 * Steps of sessions: observations for the next actions, and what followed the last ones.
 *
 * @packageDocumentation
 */

import { mapColumns } from "./batch_columns.js";
import { mismatch } from "./errors.js";
import type { DrivenRows, DrivenStep as DrivenStepMessage } from "./generated/rollserve/v1/sampler_service_pb.js";
import { joinInfos, joinLeaves } from "./joining.js";
import type { Columns } from "./tensor.js";
import { columnsFromMessages } from "./tensor_messages.js";

/**
 * Observations of N rows for the next actions of a session, and what followed the last ones. These are all rows of all
 * workers, or, of a session with `minReady`, those that are ready.
 *
 * Rows are reset in the step that ends an episode: such a row's observation is the first one of its next episode, and
 * `lastObservations` has the last one of the episode that has ended.
 */
export interface DrivenStep {
  /** The number of the step that actions are wanted for, from 0; with `minReady`, of what was received. */
  readonly number: bigint;
  /** (N, *O). The observations for the next actions. */
  readonly observations: Columns;
  /** (N). The index of the episode that each row's next step belongs to. */
  readonly episodeIndices: BigUint64Array;
  /** (N). The rewards of the last step; zeros before the first. */
  readonly rewards: Float64Array;
  /** (N). 1 where the environment has ended the row's episode with the last step, else 0. */
  readonly terminated: Uint8Array;
  /** (N). 1 where a limit has, else 0. Both flags may be set. */
  readonly truncated: Uint8Array;
  /** (E). The positions, among these rows, of those whose episodes have ended with the last step. */
  readonly endedRows: Uint32Array;
  /** (E, *O). The last observations of these episodes. */
  readonly lastObservations: Columns;
  /**
   * (N). The seed of the last reset of each row's environment; of rows that are stepped at once, the seed of their
   * joint reset.
   */
  readonly envSeeds: BigUint64Array;
  /** (N, *I) each. The infos that came with the observations, with the option `infos`. */
  readonly infos: Columns;
  /** (E, *I) each. The infos that came with the last observations, in the same form. */
  readonly lastInfos: Columns;
  /** (N). The numbers of these rows among all rows. */
  readonly rows: Uint32Array;
  /** (N). How many steps each of them has made in the session. */
  readonly rowSteps: BigUint64Array;
}

/**
 * Return the step that a message describes: of all rows, or of those that are ready.
 *
 * @throws Error - A malformed message; the text begins with a field.
 */
export function drivenStepFromMessage({ step, workers }: DrivenStepMessage, isReady: boolean): DrivenStep {
  const counts = workers.map(({ episodeIndices }) => episodeIndices.length);
  const endedCounts = workers.map(({ endedRows }) => endedRows.length);
  workers.forEach(checkRows);
  const numRows = counts.reduce((sum, count) => sum + count, 0);
  const starts = counts.map((_, worker) => counts.slice(0, worker).reduce((sum, count) => sum + count, 0));
  const endedRows = Uint32Array.from(
    workers.flatMap((rows, worker) => rows.endedRows.map((row) => (starts[worker] ?? 0) + Number(row))),
  );
  const terminated = new Uint8Array(numRows);
  const truncated = new Uint8Array(numRows);
  const areTerminated = workers.flatMap((rows) => rows.terminated);
  const areTruncated = workers.flatMap((rows) => rows.truncated);
  endedRows.forEach((row, position) => {
    terminated[row] = Number(areTerminated[position]);
    truncated[row] = Number(areTruncated[position]);
  });
  const observations = leavesOf("observations", workers, counts);
  return {
    number: step,
    observations,
    episodeIndices: BigUint64Array.from(workers.flatMap((rows) => rows.episodeIndices)),
    rewards: workers.some(({ rewards }) => rewards.length > 0)
      ? Float64Array.from(workers.flatMap(({ rewards }) => rewards))
      : new Float64Array(numRows),
    terminated,
    truncated,
    endedRows,
    lastObservations:
      endedRows.length > 0
        ? leavesOf("lastObservations", workers, endedCounts)
        : mapColumns(observations, (tensor) => tensor.rows(0, 0)),
    envSeeds: BigUint64Array.from(workers.flatMap(({ environmentSeeds }) => environmentSeeds)),
    infos: infosOf("infos", workers, counts),
    lastInfos: infosOf("lastInfos", workers, endedCounts),
    rows: isReady
      ? Uint32Array.from(workers.flatMap(({ rows }) => rows.map(Number)))
      : Uint32Array.from({ length: numRows }, (_, row) => row),
    rowSteps: isReady
      ? BigUint64Array.from(workers.flatMap(({ rowStepCounts }) => rowStepCounts))
      : new BigUint64Array(numRows).fill(step),
  };
}

function checkRows({ episodeIndices, rewards, endedRows, terminated, truncated }: DrivenRows): void {
  const numRows = episodeIndices.length;
  if (rewards.length !== 0 && rewards.length !== numRows) {
    throw new Error(`rewards: ${mismatch(String(numRows), rewards.length)}`);
  }
  if (endedRows.some((row) => row < 0 || row >= numRows)) {
    throw new Error(`endedRows: ${mismatch(`rows below ${String(numRows)}`, endedRows.join(", "))}`);
  }
  for (const [field, flags] of Object.entries({ terminated, truncated })) {
    if (flags.length !== endedRows.length) {
      throw new Error(`${field}: ${mismatch(`a value for each of ${String(endedRows.length)} rows`, flags.length)}`);
    }
  }
}

/** Return the leaves of all workers that have rows of them. */
function leavesOf(
  field: "observations" | "lastObservations",
  workers: readonly DrivenRows[],
  counts: readonly number[],
): Columns {
  const parts = workers.flatMap((rows, worker) =>
    (counts[worker] ?? 0) > 0 ? [columnsFromMessages(rows[field])] : [],
  );
  const [first, ...others] = parts;
  const numRows = counts.filter((count) => count > 0);
  return first !== undefined && others.length === 0 ? first : joinLeaves(field, parts, numRows);
}

function infosOf(field: "infos" | "lastInfos", workers: readonly DrivenRows[], counts: readonly number[]): Columns {
  const parts = workers.map((rows) => columnsFromMessages(rows[field]));
  return joinInfos(field, parts, counts);
}
