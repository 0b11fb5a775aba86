/**
 * Joining of a stream's batches into one batch, where each step is copied once.
 *
 * @packageDocumentation
 */

import type { Account } from "./account.js";
import {
  fieldsOf,
  tensorOf,
  type BatchFields,
  type Column,
  type ColumnField,
  type ColumnSpec,
  type Header,
} from "./batch_columns.js";
import { convert, isFloat, itemSize, promote, type DType } from "./dtypes.js";
import { EpisodeBatch, isMask, maskName } from "./episode_batch.js";
import { malformed, mismatch, readingError } from "./errors.js";
import { Columns, sizeOf, Tensor } from "./tensor.js";

/** Counts of what batches hold. */
export interface Counts {
  /** The number of episodes that end. */
  readonly numEpisodes: number;
  /** The number of steps. */
  readonly numSteps: number;
}

/** A batch of one agent or of many. */
type Countable = Pick<EpisodeBatch, "terminated" | "truncated" | "numSteps">;

/** A part of a column, in one of the batches. */
interface Part {
  /** The tensor; undefined where the batch lacks the column. */
  readonly tensor: Tensor | undefined;
  /** The number of rows that the batch has. */
  readonly numRows: number;
}

/** The magnitude up to which float64 holds every integer. */
const MAX_EXACT = 2 ** 53;

/** The rows of a column that are kept: all, or those at some positions in ascending order. */
type Kept = readonly number[] | undefined;

/**
 * Join the batches of a stream into one batch of whole episodes or fragments, with the account.
 *
 * The batch of a single message is not copied. If an info has several shapes, the batches that have the first shape
 * keep it, and the other values count as dropped infos in the account.
 *
 * @param batches - The batches.
 * @param account - The account of the whole stream.
 * @param before - The number of episodes that ended, and of steps, in batches that were read before these.
 * @throws ServerError - Batches that do not fit together, or an account of other numbers of episodes or steps.
 */
export function joinBatches(
  batches: readonly EpisodeBatch[],
  account: Account,
  before: Counts = { numEpisodes: 0, numSteps: 0 },
): EpisodeBatch {
  const droppedInfos: Record<string, bigint> = { ...account.droppedInfos };
  let joined: EpisodeBatch;
  try {
    joined = concatenate(withOneShape(batches, droppedInfos));
  } catch (error) {
    throw readingError(error);
  }
  checkAccount(joined, account, before);
  return joined.with({}, { ...account, droppedInfos });
}

/**
 * Return the batches of rounds as one batch: within a round, consecutive segments of one episode are one segment.
 *
 * @throws ServerError - Batches that do not fit together.
 */
export function joinRounds(rounds: readonly (readonly EpisodeBatch[])[]): EpisodeBatch {
  const begins = new Set<number>();
  let position = 0;
  for (const batches of rounds) {
    begins.add(position);
    position += batches.reduce((sum, { numSegments }) => sum + numSegments, 0);
  }
  try {
    return concatenate(withOneShape(rounds.flat(), {}), (segment) => !begins.has(segment));
  } catch (error) {
    throw readingError(error);
  }
}

/**
 * Check that a batch has as many episodes and steps as an account says.
 *
 * @throws ServerError - It has other numbers, together with what was read before.
 */
export function checkAccount(
  batch: Countable,
  account: Account,
  before: Counts = { numEpisodes: 0, numSteps: 0 },
): void {
  const { numEpisodes, numSteps } = countedWith(before, batch);
  if (BigInt(numEpisodes) !== account.numEpisodes || BigInt(numSteps) !== account.numSteps) {
    const { numEpisodes: episodes, numSteps: steps } = account;
    const expected = `${String(episodes)} episodes that end in ${String(steps)} steps, as the account says`;
    throw malformed(mismatch(expected, `${String(numEpisodes)} in ${String(numSteps)}`));
  }
}

/** Return counts with those of another batch. */
export function countedWith({ numEpisodes, numSteps }: Counts, batch: Countable): Counts {
  const { terminated, truncated } = batch;
  const numEnded = terminated.reduce((sum, flag, index) => sum + (flag | (truncated[index] ?? 0)), 0);
  return { numEpisodes: numEpisodes + numEnded, numSteps: numSteps + batch.numSteps };
}

/**
 * Return the segments of all batches, in their order, where consecutive segments of one episode are one segment.
 *
 * Infos that a batch lacks become gaps. A single batch with nothing to join is returned as it is.
 *
 * @param batches - The batches.
 * @param mayContinue - Whether the segment at a position over all batches may be joined to the one before it.
 * @throws Error - No batches, or columns that do not match; the message begins with the column's name.
 */
export function concatenate(
  batches: readonly EpisodeBatch[],
  mayContinue: (position: number) => boolean = () => true,
): EpisodeBatch {
  const [first] = batches;
  if (first === undefined) {
    throw new Error(`batches: ${mismatch("at least one", "none")}`);
  }
  const begins = beginsOf(batches, mayContinue);
  const numSegments = batches.reduce((sum, batch) => sum + batch.numSegments, 0);
  const joinsNothing = begins.length === numSegments;
  if (batches.length === 1 && joinsNothing) {
    return first.with(withoutFullMasks(first));
  }
  const keptBegins = joinsNothing ? undefined : begins;
  const keptEnds = keptBegins?.map((_, index) => (begins[index + 1] ?? numSegments) - 1);
  const kept = { first: keptBegins, last: keptEnds, sum: undefined };
  const fields = fieldsOf((field, spec) =>
    joinColumn(field, spec, batches, spec.byStep ? undefined : kept[spec.joined ?? "first"]),
  );
  const { lengths } = fields;
  return new EpisodeBatch({ ...fields, lengths: keptBegins === undefined ? lengths : sumLengths(lengths, keptBegins) });
}

/**
 * Return the rows of a column in all batches. Where some batches lack it and others have it, the former have the
 * original in its place; undefined if there is none.
 */
function joinColumn(field: ColumnField, spec: ColumnSpec, batches: readonly EpisodeBatch[], kept: Kept): Column {
  const { byStep, kind, original } = spec;
  const own = batches.map((batch): Column => batch[field]);
  const stands = original !== undefined && own.some((column) => column !== undefined);
  const columns = stands ? own.map((column, index) => column ?? batches[index]?.[original as ColumnField]) : own;
  if (columns.includes(undefined)) {
    return undefined;
  }
  const numRows = batches.map((batch) => (byStep ? batch.numSteps : batch.numSegments));
  switch (kind) {
    case "leaves":
      return joinLeaves(field, columns as Columns[], numRows, kept);
    case "infos":
      return joinInfos(field, columns as Columns[], numRows, kept);
    default: {
      const joined = joinTensors(partsOf((columns as (Header | Tensor)[]).map(tensorOf), numRows), kept);
      return columns[0] instanceof Tensor ? joined : (joined.data as Header);
    }
  }
}

/** Return the positions, over all batches, of the segments that do not continue the one before, or may not. */
export function beginsOf(batches: readonly EpisodeBatch[], mayContinue: (position: number) => boolean): number[] {
  const begins: number[] = [];
  let position = 0;
  let previous: EpisodeBatch | undefined;
  let last = 0;
  for (const batch of batches) {
    for (let segment = 0; segment < batch.numSegments; segment += 1) {
      if (previous === undefined || !mayContinue(position) || !continues(previous, last, batch, segment)) {
        begins.push(position);
      }
      previous = batch;
      last = segment;
      position += 1;
    }
  }
  return begins;
}

/** Whether a segment continues another one, which comes before it. */
function continues(before: EpisodeBatch, last: number, batch: EpisodeBatch, segment: number): boolean {
  return (
    batch.episodeIndices[segment] === before.episodeIndices[last] &&
    batch.policyVersions[segment] === before.policyVersions[last] &&
    batch.firstSteps[segment] === (before.firstSteps[last] ?? 0n) + BigInt(before.lengths[last] ?? 0) &&
    before.terminated[last] === 0 &&
    before.truncated[last] === 0
  );
}

function sumLengths(lengths: Uint32Array, begins: readonly number[]): Uint32Array {
  return Uint32Array.from(begins, (begin, index) =>
    lengths.subarray(begin, begins[index + 1]).reduce((a, b) => a + b, 0),
  );
}

function partsOf(tensors: readonly (Tensor | undefined)[], numRows: readonly number[]): Part[] {
  return tensors.map((tensor, index) => ({ tensor, numRows: numRows[index] ?? 0 }));
}

/**
 * Return the rows of leaves that all parts have.
 *
 * @throws Error - Parts with other leaves, or leaves that do not match; the message begins with the field.
 */
export function joinLeaves(
  field: string,
  columns: readonly Columns[],
  numRows: readonly number[],
  kept?: Kept,
): Columns {
  const names = (leaves: Columns | undefined): string =>
    [...(leaves?.keys() ?? [])]
      .sort()
      .map((name) => `'${name}'`)
      .join(", ");
  for (const leaves of columns) {
    if (names(leaves) !== names(columns[0])) {
      throw new Error(`${field}: ${mismatch(`leaves ${names(columns[0])}`, names(leaves))}`);
    }
  }
  const joined = new Columns();
  for (const name of columns[0]?.keys() ?? []) {
    const tensors = columns.map((leaves) => leaves.get(name));
    joined.set(
      name,
      inColumn(field, name, () => joinTensors(partsOf(tensors, numRows), kept)),
    );
  }
  return joined;
}

/**
 * Return the rows of infos, with a gap where a part lacks one.
 *
 * @throws Error - Infos that do not match; the message begins with the field.
 */
export function joinInfos(
  field: string,
  columns: readonly Columns[],
  numRows: readonly number[],
  kept?: Kept,
): Columns {
  const names = new Set(columns.flatMap((infos) => [...infos.keys()].filter((name) => !isMask(name, infos))));
  const joined = new Columns();
  for (const name of names) {
    const tensors = columns.map((infos) => infos.get(name));
    joined.set(
      name,
      inColumn(field, name, () => joinTensors(partsOf(tensors, numRows), kept)),
    );
    if (!tensors.includes(undefined) && columns.every((infos) => !infos.has(maskName(name)))) {
      continue;
    }
    const masks = columns.map((infos, index) => {
      const length = numRows[index] ?? 0;
      const full = new Uint8Array(length).fill(infos.has(name) ? 1 : 0);
      return infos.get(maskName(name)) ?? Tensor.of(full, [length], "bool");
    });
    const mask = inColumn(field, maskName(name), () => joinTensors(partsOf(masks, numRows), kept));
    if (!isFull(mask)) {
      joined.set(maskName(name), mask);
    }
  }
  return joined;
}

/** Return the rows of all parts in new memory. The rows of a part without a tensor are zeros. */
function joinTensors(parts: readonly Part[], kept: Kept): Tensor {
  const tensors = parts.flatMap(({ tensor }) => tensor ?? []);
  const rowShape = tensors[0]?.shape.slice(1) ?? [];
  for (const { shape } of tensors) {
    if (shape.slice(1).join() !== rowShape.join()) {
      throw new Error(
        mismatch(`rows of shape [${rowShape.join(", ")}]`, `rows of shape [${shape.slice(1).join(", ")}]`),
      );
    }
  }
  const dtype = commonType(tensors);
  const rowBytes = sizeOf(rowShape) * itemSize(dtype);
  const numRows = kept?.length ?? parts.reduce((sum, part) => sum + part.numRows, 0);
  const bytes = new Uint8Array(numRows * rowBytes);
  let from = 0; // the position of the part's first row
  let to = 0; // the position in the result
  let next = 0; // the position in `kept`
  for (const { tensor, numRows: partRows } of parts) {
    const end = from + partRows;
    const first = next;
    while (kept !== undefined && (kept[next] ?? end) < end) {
      next += 1;
    }
    const rows = kept?.slice(first, next).map((row) => row - from);
    if (tensor !== undefined) {
      copyRows(tensor, dtype, rows, bytes.subarray(to * rowBytes), rowBytes);
    }
    to += rows?.length ?? partRows;
    from = end;
  }
  return new Tensor(dtype, [numRows, ...rowShape], bytes);
}

/**
 * Return the type that holds each value of all tensors: numpy's `result_type`, but uint64 for signed integers beside
 * uint64.
 *
 * @throws Error - A negative integer beside uint64, or one beyond 2^53 beside floats.
 */
function commonType(tensors: readonly Tensor[]): DType {
  const dtypes = tensors.map(({ dtype }) => dtype);
  const promoted = promote(dtypes);
  const common = isFloat(promoted) && dtypes.length > 0 && !dtypes.some(isFloat) ? "uint64" : promoted;
  const low = common === "uint64" ? 0 : -MAX_EXACT;
  const high = common === "uint64" ? Infinity : MAX_EXACT;
  for (const { dtype, data } of common === "uint64" || common === "float64" ? tensors : []) {
    for (const value of dtype === common || isFloat(dtype) ? [] : data) {
      if (value < low || value > high) {
        throw new Error(mismatch(`numbers that ${common} can hold`, String(value)));
      }
    }
  }
  return common;
}

/** Write some rows of a tensor as elements of a type; all rows if `rows` is undefined. */
function copyRows(tensor: Tensor, dtype: Tensor["dtype"], rows: Kept, target: Uint8Array, rowBytes: number): void {
  let source = tensor;
  if (tensor.dtype !== dtype) {
    source = Tensor.of(convert(tensor.data, tensor.dtype, dtype), tensor.shape, dtype);
  }
  if (rows === undefined) {
    source.copyInto(target.subarray(0, source.byteLength));
    return;
  }
  rows.forEach((row, index) => {
    source.rows(row, row + 1).copyInto(target.subarray(index * rowBytes, (index + 1) * rowBytes));
  });
}

function inColumn<T>(field: string, name: string, run: () => T): T {
  try {
    return run();
  } catch (error) {
    throw new Error(`${field}['${name}']: ${error instanceof Error ? error.message : String(error)}`, { cause: error });
  }
}

function isFull(mask: Tensor): boolean {
  return mask.is("bool") && mask.data.every((value) => value === 1);
}

/** Return the parts of a batch, with its infos without masks that are true in every row. */
function withoutFullMasks(batch: EpisodeBatch): BatchFields {
  return fieldsOf((field, { kind }) => {
    const column: Column = batch[field];
    if (kind !== "infos" || !(column instanceof Columns)) {
      return column;
    }
    return new Columns([...column].filter(([name, mask]) => !(isMask(name, column) && isFull(mask))));
  });
}

/**
 * Return the batches without the environment's infos whose shape is not the first one of their name.
 *
 * A server does not mix shapes within a message, so which values are kept does not depend on how episodes are spread
 * over messages.
 */
function withOneShape(batches: readonly EpisodeBatch[], droppedInfos: Record<string, bigint>): EpisodeBatch[] {
  const shapes = shapesOfMisfits(batches);
  return batches.map((batch, index) => {
    const previous = batches[index - 1];
    const isContinued = previous !== undefined && continues(previous, previous.numSegments - 1, batch, 0);
    const pick = (field: "envInfos" | "episodeInfos", firstRow: number): Columns => {
      const infos = batch[field];
      const kept = new Columns();
      for (const [name, column] of infos) {
        const owner = isMask(name, infos) ? name.slice(1) : name;
        const shape = infos.column(owner).shape.slice(1).join();
        const key = `${field}/${owner}`;
        const expected = shapes.get(key) ?? shape;
        shapes.set(key, expected);
        if (shape === expected) {
          kept.set(name, column);
        } else if (owner === name) {
          droppedInfos[name] = (droppedInfos[name] ?? 0n) + numValues(infos, name, firstRow);
        }
      }
      return kept;
    };
    const envInfos = pick("envInfos", 0);
    const episodeInfos = pick("episodeInfos", isContinued ? 1 : 0);
    const isSame = envInfos.size === batch.envInfos.size && episodeInfos.size === batch.episodeInfos.size;
    return isSame ? batch : batch.with({ envInfos, episodeInfos });
  });
}

/** Return a shape that no info has for each info that no common type holds. */
function shapesOfMisfits(batches: readonly EpisodeBatch[]): Map<string, string> {
  const shapes = new Map<string, string>();
  for (const field of ["envInfos", "episodeInfos"] as const) {
    for (const name of new Set(batches.flatMap((batch) => [...batch[field].keys()]))) {
      try {
        commonType(batches.flatMap((batch) => batch[field].get(name) ?? []));
      } catch {
        shapes.set(`${field}/${name}`, "none");
      }
    }
  }
  return shapes;
}

/** Return the number of rows, from one on, in which an info has a value. */
function numValues(infos: Columns, name: string, firstRow: number): bigint {
  const mask = infos.get(maskName(name));
  if (mask === undefined) {
    return BigInt(infos.column(name).length - firstRow);
  }
  return BigInt(
    mask
      .as("bool")
      .subarray(firstRow)
      .reduce((sum, value) => sum + value, 0),
  );
}
