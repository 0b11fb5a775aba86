/**
 * Episode batches from messages of the wire, without copies of their columns where the machine allows that.
 *
 * @packageDocumentation
 */

import { fieldsOf, type Column, type ColumnSpec } from "./batch_columns.js";
import { EpisodeBatch } from "./episode_batch.js";
import { mismatch } from "./errors.js";
import { unstack } from "./frame_stacks.js";
import type { EpisodeBatch as BatchMessage } from "./generated/rollserve/v1/episode_batch_pb.js";
import type { Tensor as TensorMessage } from "./generated/rollserve/v1/tensor_pb.js";
import { columnsFromMessages, inNamed, tensorFromMessage } from "./tensor_messages.js";

/**
 * Return the batch in a message, whose columns refer to the message's bytes unless they are compressed.
 *
 * @param message - The message.
 * @param rowCount - The number of rows of all workers of a fragment call; otherwise 0.
 * @throws Error - A malformed message.
 */
export function batchFromMessage(message: BatchMessage, rowCount: bigint): EpisodeBatch {
  const fields = fieldsOf((field, spec) => columnFromMessage(field, spec, message));
  const { observations, lastObservations } = fields;
  for (const { name, frameCount, frames } of message.frameStacks) {
    inNamed(name, () => {
      if (observations.has(name) || lastObservations.has(name)) {
        throw new Error(mismatch("unique names", "this name twice"));
      }
      const stacks = unstack(tensorFromMessage(frames), frameCount, message.lengths);
      observations.set(name, stacks.observations);
      lastObservations.set(name, stacks.lastObservations);
    });
  }
  const { episodeIndices, firstSteps, returnsBefore } = fields;
  return new EpisodeBatch({
    ...fields,
    rowIndices: rowCount === 0n ? undefined : Uint32Array.from(episodeIndices, (index) => Number(index % rowCount)),
    returnsBefore: message.returnsBefore.length > 0 ? returnsBefore : unknownReturns(firstSteps),
  });
}

function columnFromMessage(field: string, spec: ColumnSpec, message: BatchMessage): Column {
  switch (spec.kind) {
    case "header": {
      const values = spec.field === undefined ? [] : message[spec.field];
      return spec.isOptional && values.length === 0 ? undefined : spec.array.from(values);
    }
    case "numbers": {
      const numbers = message[spec.field];
      return spec.isOptional && numbers === undefined ? undefined : numbersOf(field, spec.dtype, numbers);
    }
    default: {
      const tensors = message[spec.field];
      return spec.isOptional && tensors.length === 0 ? undefined : columnsFromMessages(tensors);
    }
  }
}

function numbersOf(field: string, dtype: "float64" | undefined, message: TensorMessage | undefined): Column {
  const numbers = tensorFromMessage(message);
  if (dtype === undefined) {
    return numbers;
  }
  if (!numbers.is(dtype) || numbers.shape.length !== 1) {
    const got = `${numbers.dtype} [${numbers.shape.join(", ")}]`;
    throw new Error(`${field}: ${mismatch(`${dtype} of one dimension`, got)}`);
  }
  return numbers.data;
}

/** Return what is known of the sums before segments without being told: 0 at an episode's start. */
function unknownReturns(firstSteps: BigUint64Array): Float64Array {
  return Float64Array.from(firstSteps, (step) => (step === 0n ? 0 : NaN));
}
