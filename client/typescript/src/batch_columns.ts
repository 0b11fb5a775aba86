/**
 * What the table of columns says of each, and what applies to all of them.
 *
 * @packageDocumentation
 */

import { COLUMNS } from "./column_table.js";
import type { EpisodeBatch } from "./episode_batch.js";
import type { EpisodeBatch as BatchMessage } from "./generated/rollserve/v1/episode_batch_pb.js";
import type { NamedTensor, Tensor as TensorMessage } from "./generated/rollserve/v1/tensor_pb.js";
import { Columns, Tensor } from "./tensor.js";

/** An array with a number for each segment or step. */
export type Header = Uint8Array | Uint32Array | BigInt64Array | BigUint64Array | Float64Array;

/** The content of a column of a batch; undefined where the batch has none. */
export type Column = Header | Tensor | Columns | undefined;

/** The name of a column's field in a batch. */
export type ColumnField = keyof typeof COLUMNS;

/** The parts of a batch. */
export type BatchFields = Pick<EpisodeBatch, ColumnField>;

/** An entry of the table of columns. */
export type ColumnSpec = HeaderSpec | NumbersSpec | NamedSpec;

interface Spec {
  /** Whether there is a row for each step, instead of each segment. */
  readonly byStep?: true;
  /** What a segment that is joined of several parts has: by default, what the first of them has. */
  readonly joined?: "last" | "sum";
  /** Whether a batch can be without the column. */
  readonly isOptional?: true;
  /** The column that a batch without this one has in its place. */
  readonly original?: string;
}

interface HeaderSpec extends Spec {
  readonly kind: "header";
  /** The class of the header. */
  readonly array: { from(values: ArrayLike<boolean | number | bigint>): Header };
  /** The field of messages; undefined if they have none. */
  readonly field?: FieldOf<readonly (boolean | number | bigint)[]>;
}

interface NumbersSpec extends Spec {
  readonly kind: "numbers";
  /** The type of the numbers, which are a typed array then; a tensor otherwise. */
  readonly dtype?: "float64";
  readonly field: FieldOf<TensorMessage | undefined>;
}

interface NamedSpec extends Spec {
  /** Leaves of a space, which are the same in all messages of a stream, or infos, which can have gaps. */
  readonly kind: "leaves" | "infos";
  readonly field: FieldOf<readonly NamedTensor[]>;
}

/** The names of the fields of messages that have a type. */
type FieldOf<T> = { [K in keyof BatchMessage]-?: BatchMessage[K] extends T ? K : never }[keyof BatchMessage];

/** Return the parts of a batch, given a function that returns each. */
export function fieldsOf(column: (field: ColumnField, spec: ColumnSpec) => Column): BatchFields {
  const entries = Object.entries(COLUMNS).map(([field, spec]) => [field, column(field as ColumnField, spec)]);
  return Object.fromEntries(entries) as BatchFields;
}

/** Return a column with what a function makes of each tensor in it. */
export function mapColumn(column: Column, map: (tensor: Tensor) => Tensor): Column {
  if (column instanceof Columns) {
    return mapColumns(column, map);
  }
  return column instanceof Tensor ? map(column) : column && (map(tensorOf(column)).data as Header);
}

/** Return columns with what a function makes of each tensor. */
export function mapColumns(columns: Columns, map: (tensor: Tensor) => Tensor): Columns {
  return new Columns(Array.from(columns, ([name, tensor]) => [name, map(tensor)] as const));
}

/** Return numbers as a tensor, which refers to them. */
export function tensorOf(numbers: Header | Tensor): Tensor {
  return numbers instanceof Tensor ? numbers : Tensor.of(numbers);
}
