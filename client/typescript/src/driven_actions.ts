/**
 * Actions of a session's step, and the infos with them, as the environments take them.
 *
 * @packageDocumentation
 */

import { create } from "@bufbuild/protobuf";

import {
  dtypeOf,
  float16ToFloat32,
  float32ToFloat16,
  isFloat,
  itemSize,
  viewOf,
  type DType,
  type TypedArray,
} from "./dtypes.js";
import { InvalidArgumentError } from "./errors.js";
import { DrivenActionsSchema, type DrivenActions } from "./generated/rollserve/v1/sampler_service_pb.js";
import type { RowForm } from "./spaces.js";
import { sizeOf, Tensor } from "./tensor.js";
import { namedTensorsToMessages } from "./tensor_messages.js";

/** Values of all rows, one row after the other: a tensor (N, …), or the elements alone. */
export type RowValues = Tensor | TypedArray | readonly (number | bigint)[];

/** Actions of all rows; by the names of the leaves where the action space is a Dict or a Tuple. */
export type Actions = RowValues | ReadonlyMap<string, RowValues> | Readonly<Record<string, RowValues>>;

/** Forms of what the rows of a session take, by name. */
export type RowForms = ReadonlyMap<string, RowForm>;

/**
 * Return values as named columns.
 *
 * @param field - The name that errors begin with.
 * @param given - The values.
 * @param forms - The forms of the columns, all of which have to be given.
 * @param numRows - The number of rows.
 * @throws InvalidArgumentError - Values of other names, another shape, or a type that the column's cannot hold.
 */
export function rowColumns(field: string, given: Actions, forms: RowForms, numRows: number): [string, Tensor][] {
  const values = byName(given);
  const names = (columns: ReadonlyMap<string, unknown>): string => `['${[...columns.keys()].sort().join("', '")}']`;
  if (values.size !== forms.size || [...forms.keys()].some((name) => !values.has(name))) {
    throw InvalidArgumentError.of(field, `the names ${names(forms)}`, names(values));
  }
  return [...forms].map(([name, form]) => {
    const path = name === "" ? field : `${field}['${name}']`;
    return [name, rowTensor(path, values.get(name) ?? [], form, numRows)];
  });
}

/** Return the message with the actions of a step. */
export function actionsToMessage(
  step: bigint,
  actions: readonly [string, Tensor][],
  agentInfos: readonly [string, Tensor][],
  others: { readonly idle?: boolean[]; readonly rows?: bigint[]; readonly rowStepCounts?: bigint[] },
): DrivenActions {
  return create(DrivenActionsSchema, {
    step,
    actions: namedTensorsToMessages(actions),
    agentInfos: namedTensorsToMessages(agentInfos),
    ...others,
  });
}

function byName(given: Actions): ReadonlyMap<string, RowValues> {
  if (given instanceof Map) {
    return given as ReadonlyMap<string, RowValues>;
  }
  const isPlain = given instanceof Tensor || ArrayBuffer.isView(given) || Array.isArray(given);
  return new Map(isPlain ? [["", given as RowValues]] : Object.entries(given as Readonly<Record<string, RowValues>>));
}

function rowTensor(field: string, given: RowValues, { dtype, shape = [] }: RowForm, numRows: number): Tensor {
  const expected = [numRows, ...shape];
  const values = given instanceof Tensor ? given.data : given;
  const got = given instanceof Tensor ? given.shape : [values.length];
  const fits = given instanceof Tensor ? got.join() === expected.join() : values.length === sizeOf(expected);
  if (!fits) {
    throw InvalidArgumentError.of(field, `shape [${expected.join(", ")}]`, `[${got.join(", ")}]`);
  }
  const from = given instanceof Tensor ? given.dtype : ArrayBuffer.isView(given) ? dtypeOf(given) : undefined;
  if (given instanceof Tensor && from === dtype) {
    return given;
  }
  if (from !== undefined && isFloat(from) && !isFloat(dtype)) {
    throw InvalidArgumentError.of(field, dtype, from);
  }
  const numbers = from === "float16" ? float16ToFloat32(values as Uint16Array) : values;
  return Tensor.of(elements(field, numbers, dtype), expected, dtype);
}

/** Return numbers as elements of a type; integers have to stay what they are. */
function elements(field: string, numbers: ArrayLike<number | bigint>, dtype: DType): TypedArray {
  if (dtype === "float16") {
    return float32ToFloat16(Array.from(numbers, Number));
  }
  const data: TypedArray = viewOf(dtype, new ArrayBuffer(numbers.length * itemSize(dtype)), 0, numbers.length);
  for (let index = 0; index < data.length; index += 1) {
    const number = numbers[index] ?? 0;
    if (!(data instanceof BigInt64Array || data instanceof BigUint64Array)) {
      data[index] = Number(number);
    } else if (typeof number === "bigint" || Number.isInteger(number)) {
      data[index] = BigInt(number);
    }
    if (!isFloat(dtype) && data[index] != number) {
      throw InvalidArgumentError.of(field, `integers that ${dtype} can hold`, number);
    }
  }
  return data;
}
