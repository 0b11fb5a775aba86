/**
 * Episodes as arrays: flat columns, lengths, and the observation after each last action.
 *
 * @packageDocumentation
 */

import type { Account } from "./account.js";
import { mismatch } from "./errors.js";
import { Columns, Tensor } from "./tensor.js";

/** An array with a number for each segment or step. */
export type Header = Uint8Array | Uint32Array | BigInt64Array | BigUint64Array | Float64Array;

/** The parts of a batch. */
export interface BatchFields {
  readonly observations: Columns;
  readonly lastObservations: Columns;
  readonly actions: Columns;
  readonly rewards: Float64Array;
  readonly lengths: Uint32Array;
  readonly terminated: Uint8Array;
  readonly truncated: Uint8Array;
  readonly agentInfos: Columns;
  readonly envInfos: Columns;
  readonly episodeInfos: Columns;
  readonly policyVersions: BigInt64Array;
  readonly episodeIndices: BigUint64Array;
  readonly firstSteps: BigUint64Array;
  readonly envSeeds: Uint32Array;
  readonly workerIndices: Uint32Array | undefined;
  readonly rowIndices: Uint32Array | undefined;
  readonly initialStates: Columns;
  readonly lastStates: Columns;
  readonly lastValues: Tensor | undefined;
  readonly rawRewards: Float64Array | undefined;
  readonly envActions: Columns | undefined;
  readonly returnsBefore: Float64Array;
}

/**
 * N segments (episodes or fragments of episodes) with T steps in all, as flat columns.
 *
 * The rows of a segment are contiguous, and segments follow each other in the order of the headers.
 */
export class EpisodeBatch implements BatchFields {
  /** (T, *O). The observation before each step. */
  readonly observations: Columns;
  /** (N, *O). The observation after the last step of each segment. */
  readonly lastObservations: Columns;
  /** (T, *A). The action of each step. */
  readonly actions: Columns;
  /** (T). The reward of each step. */
  readonly rewards: Float64Array;
  /** (N). The number of steps of each segment, at least 1. */
  readonly lengths: Uint32Array;
  /** (N). 1 where the last step reached a terminal state, else 0. */
  readonly terminated: Uint8Array;
  /**
   * (N). 1 where a limit ended the episode at the last step, else 0. Both flags may be set. Neither is set for a
   * segment whose episode goes on.
   */
  readonly truncated: Uint8Array;
  /** (T, *I) each. The infos of the agent, such as `log_prob`. */
  readonly agentInfos: Columns;
  /** (T, *I) each. The infos of the environment's steps. */
  readonly envInfos: Columns;
  /** (N, *I) each. The infos of the environment's resets. */
  readonly episodeInfos: Columns;
  /** (N). The version of the policy that acted. */
  readonly policyVersions: BigInt64Array;
  /** (N). The index of the episode in its sequence. */
  readonly episodeIndices: BigUint64Array;
  /** (N). The number of steps of the episode before the segment, including earlier calls. */
  readonly firstSteps: BigUint64Array;
  /** (N). The seed that the environment was reset with. */
  readonly envSeeds: Uint32Array;
  /** (N). The worker that the episode is bound to; undefined where any worker can have run it. */
  readonly workerIndices: Uint32Array | undefined;
  /** (N). The row of all workers' rows that each fragment ran in; undefined except for fragments. */
  readonly rowIndices: Uint32Array | undefined;
  /** (N, *H) each. The recurrent states before the first step of each segment. */
  readonly initialStates: Columns;
  /** (N, *H) each. The recurrent states after the last step of each segment, with the option `returnLastStates`. */
  readonly lastStates: Columns;
  /**
   * (N), of the type of the info `value`. The value of each last observation, 0 where the segment terminated; undefined
   * without the option `returnLastValues`.
   */
  readonly lastValues: Tensor | undefined;
  /** (T). The reward of each step as the environment returned it; undefined unless transforms change rewards. */
  readonly rawRewards: Float64Array | undefined;
  /** (T, *A). The action of each step as the environment got it; undefined unless transforms change actions. */
  readonly envActions: Columns | undefined;
  /**
   * (N). The sum of the environment's own rewards of the episode before the segment, including earlier calls; NaN where
   * the server does not tell.
   */
  readonly returnsBefore: Float64Array;
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
    this.observations = fields.observations;
    this.lastObservations = fields.lastObservations;
    this.actions = fields.actions;
    this.rewards = fields.rewards;
    this.lengths = fields.lengths;
    this.terminated = fields.terminated;
    this.truncated = fields.truncated;
    this.agentInfos = fields.agentInfos;
    this.envInfos = fields.envInfos;
    this.episodeInfos = fields.episodeInfos;
    this.policyVersions = fields.policyVersions;
    this.episodeIndices = fields.episodeIndices;
    this.firstSteps = fields.firstSteps;
    this.envSeeds = fields.envSeeds;
    this.workerIndices = fields.workerIndices;
    this.rowIndices = fields.rowIndices;
    this.initialStates = fields.initialStates;
    this.lastStates = fields.lastStates;
    this.lastValues = fields.lastValues;
    this.rawRewards = fields.rawRewards;
    this.envActions = fields.envActions;
    this.returnsBefore = fields.returnsBefore;
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
    const stepsTaken = this.stepsOf(segments);
    const steps = (columns: Columns): Columns => mapColumns(columns, (tensor) => tensor.gather(stepsTaken));
    const rows = (columns: Columns): Columns => mapColumns(columns, (tensor) => tensor.gather(segments));
    const numbers = <T extends Header>(values: T, places: readonly number[] = segments): T =>
      Tensor.of(values).gather(places).data as T;
    return new EpisodeBatch({
      observations: steps(this.observations),
      lastObservations: rows(this.lastObservations),
      actions: steps(this.actions),
      rewards: numbers(this.rewards, stepsTaken),
      lengths: numbers(this.lengths),
      terminated: numbers(this.terminated),
      truncated: numbers(this.truncated),
      agentInfos: steps(this.agentInfos),
      envInfos: steps(this.envInfos),
      episodeInfos: rows(this.episodeInfos),
      policyVersions: numbers(this.policyVersions),
      episodeIndices: numbers(this.episodeIndices),
      firstSteps: numbers(this.firstSteps),
      envSeeds: numbers(this.envSeeds),
      workerIndices: this.workerIndices && numbers(this.workerIndices),
      rowIndices: this.rowIndices && numbers(this.rowIndices),
      initialStates: rows(this.initialStates),
      lastStates: rows(this.lastStates),
      lastValues: this.lastValues?.gather(segments),
      rawRewards: this.rawRewards && numbers(this.rawRewards, stepsTaken),
      envActions: this.envActions && steps(this.envActions),
      returnsBefore: numbers(this.returnsBefore),
    });
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
    const steps = (columns: Columns): Columns => mapColumns(columns, (tensor) => tensor.rows(beginStep, endStep));
    const rows = (columns: Columns): Columns => mapColumns(columns, (tensor) => tensor.rows(beginSegment, endSegment));
    return {
      observations: steps(this.observations),
      lastObservations: rows(this.lastObservations),
      actions: steps(this.actions),
      rewards: this.rewards.subarray(beginStep, endStep),
      lengths: this.lengths.subarray(beginSegment, endSegment),
      terminated: this.terminated.subarray(beginSegment, endSegment),
      truncated: this.truncated.subarray(beginSegment, endSegment),
      agentInfos: steps(this.agentInfos),
      envInfos: steps(this.envInfos),
      episodeInfos: rows(this.episodeInfos),
      policyVersions: this.policyVersions.subarray(beginSegment, endSegment),
      episodeIndices: this.episodeIndices.subarray(beginSegment, endSegment),
      firstSteps: this.firstSteps.subarray(beginSegment, endSegment),
      envSeeds: this.envSeeds.subarray(beginSegment, endSegment),
      workerIndices: this.workerIndices?.subarray(beginSegment, endSegment),
      rowIndices: this.rowIndices?.subarray(beginSegment, endSegment),
      initialStates: rows(this.initialStates),
      lastStates: rows(this.lastStates),
      lastValues: this.lastValues?.rows(beginSegment, endSegment),
      rawRewards: this.rawRewards?.subarray(beginStep, endStep),
      envActions: this.envActions && steps(this.envActions),
      returnsBefore: this.returnsBefore.subarray(beginSegment, endSegment),
    };
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

function mapColumns(columns: Columns, map: (tensor: Tensor) => Tensor): Columns {
  return new Columns(Array.from(columns, ([name, tensor]) => [name, map(tensor)] as const));
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
  for (const name of HEADERS) {
    const header = batch[name];
    if (header !== undefined && header.length !== numSegments) {
      throw new Error(`${name}: ${mismatch(`${String(numSegments)} rows`, header.length)}`);
    }
  }
  for (const name of STEP_COLUMNS) {
    checkRows(name, batch[name], numSteps);
  }
  for (const name of SEGMENT_COLUMNS) {
    checkRows(name, batch[name], numSegments);
  }
  checkRows("envActions", batch.envActions ?? new Columns(), numSteps);
  checkRows("lastValues", new Columns(batch.lastValues && [["", batch.lastValues]]), numSegments);
  if (batch.rawRewards !== undefined && batch.rawRewards.length !== numSteps) {
    throw new Error(`rawRewards: ${mismatch(`${String(numSteps)} rows`, batch.rawRewards.length)}`);
  }
  checkLastObservations(batch);
}

function checkRows(name: string, columns: Columns, numRows: number): void {
  for (const [leaf, { shape }] of columns) {
    if (shape[0] !== numRows) {
      throw new Error(`${name}['${leaf}']: ${mismatch(`${String(numRows)} rows`, `shape [${shape.join(", ")}]`)}`);
    }
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

/** The fields of a batch with a row for each step. */
export const STEP_COLUMNS = ["observations", "actions", "agentInfos", "envInfos"] as const;
/** The fields of a batch with a row for each segment, beside the headers. */
export const SEGMENT_COLUMNS = ["lastObservations", "episodeInfos", "initialStates", "lastStates"] as const;
/** The fields of a batch with a number for each segment. */
export const HEADERS = [
  "lengths",
  "terminated",
  "truncated",
  "policyVersions",
  "episodeIndices",
  "firstSteps",
  "envSeeds",
  "workerIndices",
  "rowIndices",
  "returnsBefore",
] as const;
