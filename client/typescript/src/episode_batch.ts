/**
 * Episodes as arrays: flat columns, lengths, and the observation after each last action.
 *
 * @packageDocumentation
 */

import type { Account } from "./account.js";
import {
  fieldsOf,
  mapColumn,
  mapColumns,
  type BatchFields,
  type Column,
  type ColumnField,
  type ColumnSpec,
} from "./batch_columns.js";
import { COLUMNS } from "./column_table.js";
import { mismatch } from "./errors.js";
import { Columns, Tensor } from "./tensor.js";

/**
 * N segments (episodes or fragments of episodes) with T steps in all, as flat columns.
 *
 * The rows of a segment are contiguous, and segments follow each other in the order of the headers.
 */
export class EpisodeBatch {
  /** (T, *O). The observation before each step. */
  readonly observations!: Columns;
  /** (N, *O). The observation after the last step of each segment. */
  readonly lastObservations!: Columns;
  /** (T, *A). The action of each step. */
  readonly actions!: Columns;
  /** (T). The reward of each step. */
  readonly rewards!: Float64Array;
  /** (N). The number of steps of each segment, at least 1. */
  readonly lengths!: Uint32Array;
  /** (N). 1 where the last step reached a terminal state, else 0. */
  readonly terminated!: Uint8Array;
  /**
   * (N). 1 where a limit ended the episode at the last step, else 0. Both flags may be set. Neither is set for a
   * segment whose episode goes on.
   */
  readonly truncated!: Uint8Array;
  /** (T, *I) each. The infos of the agent, such as `log_prob`. */
  readonly agentInfos!: Columns;
  /** (T, *I) each. The infos of the environment's steps. */
  readonly envInfos!: Columns;
  /** (N, *I) each. The infos of the environment's resets. */
  readonly episodeInfos!: Columns;
  /** (N). The version of the policy that acted. */
  readonly policyVersions!: BigInt64Array;
  /** (N). The index of the episode in its sequence. */
  readonly episodeIndices!: BigUint64Array;
  /** (N). The number of steps of the episode before the segment, including earlier calls. */
  readonly firstSteps!: BigUint64Array;
  /** (N). The seed that the environment was reset with. */
  readonly envSeeds!: Uint32Array;
  /** (N). The worker that the episode is bound to; undefined where any worker can have run it. */
  readonly workerIndices!: Uint32Array | undefined;
  /** (N). The row of all workers' rows that each fragment ran in; undefined except for fragments. */
  readonly rowIndices!: Uint32Array | undefined;
  /** (N, *H) each. The recurrent states before the first step of each segment. */
  readonly initialStates!: Columns;
  /** (N, *H) each. The recurrent states after the last step of each segment, with the option `returnLastStates`. */
  readonly lastStates!: Columns;
  /**
   * (N), of the type of the info `value`. The value of each last observation, 0 where the segment terminated; undefined
   * without the option `returnLastValues`.
   */
  readonly lastValues!: Tensor | undefined;
  /** (T). The reward of each step as the environment returned it; undefined unless transforms change rewards. */
  readonly rawRewards!: Float64Array | undefined;
  /** (T, *A). The action of each step as the environment got it; undefined unless transforms change actions. */
  readonly envActions!: Columns | undefined;
  /**
   * (N). The sum of the environment's own rewards of the episode before the segment, including earlier calls; NaN where
   * the server does not tell.
   */
  readonly returnsBefore!: Float64Array;
  /** The account of the call whose whole result the batch is; otherwise undefined. */
  readonly account: Account | undefined;

  /**
   * Make a batch of its parts.
   *
   * @throws Error - Parts that do not fit together; the message begins with the name of one.
   *
   * @internal
   */
  constructor(fields: BatchFields, account?: Account) {
    Object.assign(this, fields);
    this.account = account;
    check(this);
  }

  /** N, the number of segments. */
  get numSegments(): number {
    return this.lengths.length;
  }

  /** T, the number of steps of all segments. */
  get numSteps(): number {
    return this.rewards.length;
  }

  /** (N). The position of each segment's first step. */
  get starts(): Uint32Array {
    const starts = new Uint32Array(this.numSegments);
    for (let segment = 1; segment < starts.length; segment += 1) {
      starts[segment] = (starts[segment - 1] ?? 0) + (this.lengths[segment - 1] ?? 0);
    }
    return starts;
  }

  /** (N). The sum of the rewards of each segment, added up step by step. */
  get returns(): Float64Array {
    return this.#sums(this.rewards);
  }

  /** (N). The sum of the environment's own rewards of each segment, without transforms. */
  get rawReturns(): Float64Array {
    return this.#sums(this.rawRewards ?? this.rewards);
  }

  /**
   * (N). The sum of the environment's own rewards of each segment's episode up to the segment's last step, including
   * earlier calls; NaN where the server does not tell.
   */
  get episodeReturns(): Float64Array {
    return this.rawReturns.map((sum, segment) => sum + (this.returnsBefore[segment] ?? NaN));
  }

  /** Yield a batch for each segment, whose arrays share this batch's memory. */
  *segments(): Generator<EpisodeBatch> {
    const { starts } = this;
    for (let segment = 0; segment < this.numSegments; segment += 1) {
      const start = starts[segment] ?? 0;
      yield new EpisodeBatch(this.#slice(start, start + (this.lengths[segment] ?? 0), segment, segment + 1));
    }
  }

  /**
   * Return the batch without its first steps. A segment that loses some of its steps begins later in its episode.
   *
   * The recurrent state of such a segment is a gap, unless agentInfos hold the states of every step.
   *
   * @internal
   */
  withoutFirstSteps(numSteps: number): EpisodeBatch {
    let numDropped = 0;
    let end = 0;
    while (numDropped < this.numSegments && end + (this.lengths[numDropped] ?? 0) <= numSteps) {
      end += this.lengths[numDropped] ?? 0;
      numDropped += 1;
    }
    const rest = this.#slice(numSteps, this.numSteps, numDropped, this.numSegments);
    const cut = numSteps - end;
    if (cut === 0) {
      return new EpisodeBatch(rest);
    }
    const lengths = rest.lengths.slice();
    const firstSteps = rest.firstSteps.slice();
    lengths[0] = (lengths[0] ?? 0) - cut;
    firstSteps[0] = (firstSteps[0] ?? 0n) + BigInt(cut);
    const returnsBefore = rest.returnsBefore.slice();
    for (const reward of (this.rawRewards ?? this.rewards).subarray(end, numSteps)) {
      returnsBefore[0] = (returnsBefore[0] ?? 0) + reward;
    }
    return new EpisodeBatch({ ...rest, lengths, firstSteps, returnsBefore, initialStates: laterStates(rest) });
  }

  /**
   * Return some segments, in the given order, in new memory.
   *
   * @internal
   */
  take(segments: readonly number[]): EpisodeBatch {
    const steps = this.stepsOf(segments);
    return new EpisodeBatch(
      fieldsOf((field, { byStep }) => mapColumn(this[field], (tensor) => tensor.gather(byStep ? steps : segments))),
    );
  }

  /**
   * Return the positions of the steps of some segments.
   *
   * @internal
   */
  stepsOf(segments: readonly number[]): number[] {
    const { starts } = this;
    return segments.flatMap((segment) =>
      Array.from({ length: this.lengths[segment] ?? 0 }, (_, step) => (starts[segment] ?? 0) + step),
    );
  }

  /**
   * Return a batch with other parts, and with the account.
   *
   * @internal
   */
  with(changes: Partial<BatchFields>, account?: Account): EpisodeBatch {
    return new EpisodeBatch({ ...(this as BatchFields), ...changes }, account);
  }

  /** Return the sum of each segment, added up step by step. */
  #sums(rewards: Float64Array): Float64Array {
    const sums = new Float64Array(this.numSegments);
    let step = 0;
    this.lengths.forEach((length, segment) => {
      let sum = 0;
      for (const end = step + length; step < end; step += 1) {
        sum += rewards[step] ?? 0;
      }
      sums[segment] = sum;
    });
    return sums;
  }

  /** Return the parts of a batch for a range of segments and a range of steps, which share this batch's memory. */
  #slice(beginStep: number, endStep: number, beginSegment: number, endSegment: number): BatchFields {
    return fieldsOf((field, { byStep }) =>
      mapColumn(this[field], (tensor) =>
        byStep ? tensor.rows(beginStep, endStep) : tensor.rows(beginSegment, endSegment),
      ),
    );
  }
}

/** Return the name of the mask of an info. */
export function maskName(name: string): string {
  return `_${name}`;
}

/** Whether a column is the mask of another one. */
export function isMask(name: string, columns: Columns): boolean {
  return name.startsWith("_") && columns.has(name.slice(1));
}

/** Return the initial states of segments of which the first one has lost some of its first steps. */
function laterStates({ initialStates, agentInfos, lengths: { length: numSegments } }: BatchFields): Columns {
  const later = mapColumns(initialStates, ({ dtype, shape, data }) => Tensor.of(data.slice(), shape, dtype));
  for (const [name, state] of initialStates) {
    if (isMask(name, initialStates)) {
      continue;
    }
    const stepStates = agentInfos.get(`state/${name}`);
    const first = later.column(name).row(0);
    if (stepStates !== undefined) {
      first.set(stepStates.as(state.dtype).subarray(0, first.length) as never);
      continue;
    }
    first.fill(0 as never);
    const mask = later.get(maskName(name)) ?? Tensor.of(new Uint8Array(numSegments).fill(1), [numSegments], "bool");
    mask.as("bool")[0] = 0;
    later.set(maskName(name), mask);
  }
  return later;
}

function check(batch: EpisodeBatch): void {
  const { numSegments, numSteps, lengths } = batch;
  let sum = 0;
  for (const length of lengths) {
    if (length < 1) {
      throw new Error(`lengths: ${mismatch("at least 1", length)}`);
    }
    sum += length;
  }
  if (sum !== numSteps) {
    throw new Error(`lengths: ${mismatch(`a sum of ${String(numSteps)}, as rewards has rows`, sum)}`);
  }
  for (const [field, { byStep }] of Object.entries<ColumnSpec>(COLUMNS)) {
    checkRows(field, batch[field as ColumnField], byStep ? numSteps : numSegments);
  }
  checkLastObservations(batch);
}

function checkRows(field: string, column: Column, numRows: number): void {
  const expected = `${String(numRows)} rows`;
  if (column instanceof Tensor || column instanceof Columns) {
    const columns = column instanceof Tensor ? new Columns([["", column]]) : column;
    for (const [leaf, { shape }] of columns) {
      if (shape[0] !== numRows) {
        throw new Error(`${field}['${leaf}']: ${mismatch(expected, `shape [${shape.join(", ")}]`)}`);
      }
    }
  } else if (column !== undefined && column.length !== numRows) {
    throw new Error(`${field}: ${mismatch(expected, column.length)}`);
  }
}

function checkLastObservations({ observations, lastObservations }: EpisodeBatch): void {
  const text = (columns: Columns): string =>
    Array.from(columns, ([name, { dtype, shape }]) => `'${name}' ${dtype} [${shape.slice(1).join(", ")}]`)
      .sort()
      .join(", ");
  if (text(observations) !== text(lastObservations)) {
    throw new Error(`lastObservations: ${mismatch(`leaves ${text(observations)}`, text(lastObservations))}`);
  }
}
