/**
 * Tensors from and to messages of the wire.
 *
 * @packageDocumentation
 */

import { create } from "@bufbuild/protobuf";

import { decompress } from "./compression.js";
import { fromDataType, itemSize, toDataType } from "./dtypes.js";
import { mismatch } from "./errors.js";
import { Compression, NamedTensorSchema, TensorSchema } from "./generated/rollserve/v1/tensor_pb.js";
import type { NamedTensor, Tensor as TensorMessage } from "./generated/rollserve/v1/tensor_pb.js";
import { Columns, Tensor } from "./tensor.js";

const MAX_DIMENSIONS = 32;
const MAX_ELEMENTS = 1n << 59n;

/**
 * Return the tensor of a message, which refers to the message's bytes unless they are compressed.
 *
 * @throws Error - A type that is not set or not known, sizes that are negative, too many or too large, data of another
 * length than type and shape ask for, data that cannot be decompressed to that length, or a truth value that is neither
 * 0 nor 1. The message begins with the field.
 */
export function tensorFromMessage(message: TensorMessage | undefined): Tensor {
  const { dataType, shape: sizes, data: sent, compression } = message ?? create(TensorSchema);
  const dtype = fromDataType(dataType);
  if (dtype === undefined) {
    throw new Error(`data_type: ${mismatch("a member of DataType", dataType)}`);
  }
  const byteLength = sizeOfShape(sizes) * itemSize(dtype);
  const data = compression === Compression.UNSPECIFIED ? sent : decompress(sent, compression, byteLength);
  if (data.byteLength !== byteLength) {
    const expected = `${String(byteLength)} bytes for ${dtype} of shape [${sizes.join(", ")}]`;
    throw new Error(`data: ${mismatch(expected, `${String(data.byteLength)} bytes`)}`);
  }
  if (dtype === "bool" && data.some((byte) => byte > 1)) {
    throw new Error(`data: ${mismatch("truth values of 0 or 1", "another byte")}`);
  }
  return new Tensor(dtype, sizes.map(Number), data);
}

/** Return the message for a tensor, which refers to the tensor's bytes. */
export function tensorToMessage(tensor: Tensor): TensorMessage {
  const { data } = tensor;
  return create(TensorSchema, {
    dataType: toDataType(tensor.dtype),
    shape: tensor.shape.map(BigInt),
    data: new Uint8Array(data.buffer, data.byteOffset, data.byteLength),
  });
}

/**
 * Return the columns in a list of named tensors.
 *
 * @throws Error - A name that occurs twice, or a malformed tensor; the message begins with the name in brackets.
 */
export function columnsFromMessages(tensors: readonly NamedTensor[]): Columns {
  const columns = new Columns();
  for (const { name, tensor } of tensors) {
    inNamed(name, () => {
      if (columns.has(name)) {
        throw new Error(mismatch("unique names", "this name twice"));
      }
      columns.set(name, tensorFromMessage(tensor));
    });
  }
  return columns;
}

/** Return the messages for named tensors, in their order. */
export function namedTensorsToMessages(tensors: Iterable<readonly [string, Tensor]>): NamedTensor[] {
  return Array.from(tensors, ([name, tensor]) => create(NamedTensorSchema, { name, tensor: tensorToMessage(tensor) }));
}

/** Run a function whose errors are about the value of a name, in a list of named ones. */
export function inNamed<T>(name: string, run: () => T): T {
  try {
    return run();
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    throw new Error(`['${name}'] ${text}`, { cause: error });
  }
}

function sizeOfShape(sizes: readonly bigint[]): number {
  if (sizes.length > MAX_DIMENSIONS) {
    throw new Error(`shape: ${mismatch(`at most ${String(MAX_DIMENSIONS)} sizes`, `${String(sizes.length)} sizes`)}`);
  }
  if (sizes.some((size) => size < 0n)) {
    throw new Error(`shape: ${mismatch("sizes of at least 0", `[${sizes.join(", ")}]`)}`);
  }
  if (sizes.reduce((product, size) => product * (size || 1n), 1n) > MAX_ELEMENTS) {
    throw new Error(`shape: ${mismatch("sizes whose product is at most 2^59", `[${sizes.join(", ")}]`)}`);
  }
  return Number(sizes.reduce((product, size) => product * size, 1n));
}
