/**
 * Infos of the rows of one message.
 *
 * @packageDocumentation
 */

import { create } from "@bufbuild/protobuf";

import { arrayTypeOf, bytesOf } from "./arrays.js";
import { Json, type Infos } from "./environment.js";
import { mismatch } from "./errors.js";
import { InfoSchema, type Info } from "./generated/rollserve/rows/v1/rows_pb.js";
import { DataType } from "./generated/rollserve/v1/tensor_pb.js";

/** The values of an info: their common form, and those of each row that has one. */
interface Column {
  readonly form: Form;
  readonly positions: number[];
  readonly texts: string[];
  readonly parts: Uint8Array[];
}

/** The type and shape of arrays; undefined for JSON. */
type Form = { readonly dataType: DataType; readonly shape: readonly number[] } | undefined;

/** The infos of the rows of one message, by name. */
export class InfoColumns {
  readonly #columns = new Map<string, Column>();

  /**
   * Add the infos of a row, or none of them if one differs in type or shape from that of another row.
   *
   * @throws Error - An info that differs.
   */
  add(position: number, infos: Infos): void {
    const read = Object.entries(infos).map(([name, value]) => [name, valueOf(value)] as const);
    for (const [name, { form }] of read) {
      const others = this.#columns.get(name);
      if (others !== undefined && textOf(form) !== textOf(others.form)) {
        throw mismatch(`infos['${name}']`, `${textOf(others.form)}, as in other rows`, textOf(form));
      }
    }
    for (const [name, { form, text, bytes }] of read) {
      const column = this.#columns.get(name) ?? { form, positions: [], texts: [], parts: [] };
      this.#columns.set(name, column);
      column.positions.push(position);
      column.texts.push(text);
      column.parts.push(bytes);
    }
  }

  /** Return the infos of a number of rows as messages. */
  messages(numRows: number): Info[] {
    return Array.from(this.#columns, ([name, { form, positions, texts, parts }]) =>
      create(InfoSchema, {
        name,
        positions: positions.length === numRows ? [] : positions,
        values:
          form === undefined
            ? { case: "json", value: { texts } }
            : {
                case: "tensor",
                value: {
                  dataType: form.dataType,
                  shape: [positions.length, ...form.shape].map(BigInt),
                  data: Buffer.concat(parts),
                },
              },
      }),
    );
  }
}

function valueOf(value: Infos[string]): { form: Form; text: string; bytes: Uint8Array } {
  if (value instanceof Json) {
    return { form: undefined, text: JSON.stringify(value.value), bytes: new Uint8Array() };
  }
  if (typeof value === "boolean") {
    return { form: { dataType: DataType.BOOL, shape: [] }, text: "", bytes: Uint8Array.of(Number(value)) };
  }
  const { data, shape = [data.length] } =
    typeof value === "number" ? { data: Float64Array.of(value), shape: [] } : value;
  return { form: { dataType: arrayTypeOf(data).dataType, shape }, text: "", bytes: bytesOf(data).slice() };
}

function textOf(form: Form): string {
  return form === undefined ? "JSON" : `${DataType[form.dataType]} of shape (${form.shape.join(", ")})`;
}
