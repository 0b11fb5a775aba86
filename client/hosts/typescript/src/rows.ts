/**
 * The rows of one connection, and the answers to its requests.
 *
 * @packageDocumentation
 */

import { create, fromBinary, type JsonObject, type JsonValue } from "@bufbuild/protobuf";

import type { Arguments, Environment, Host, Step } from "./environment.js";
import { expect, mismatch, textOf } from "./errors.js";
import * as rows from "./generated/rollserve/rows/v1/rows_pb.js";
import { SpaceSchema } from "./generated/rollserve/v1/space_pb.js";
import { InfoColumns } from "./infos.js";
import { actionColumns, actionOf, leavesOf, ObservationColumns, type Leaf } from "./leaves.js";

const MAX_ROWS = 1 << 16;

interface Row {
  /** Undefined once it has failed. */
  environment: Environment | undefined;
  /** Whether an episode has begun and not ended. */
  runs: boolean;
}

const FAILED: Row = { environment: undefined, runs: false };

/** The rows of one connection. A request that is refused leaves all of them as they are. */
export class Rows {
  readonly #host: Host;
  #asked: Arguments = { kwargs: undefined, task: undefined };
  #rows: readonly Row[] = [];
  #observation: readonly Leaf[] = [];
  #action: readonly Leaf[] = [];
  #number = 0n; // of the last request

  /** Begin without rows. */
  constructor(host: Host) {
    this.#host = host;
  }

  /** Answer a request, given as the bytes of a message. */
  answer(message: Uint8Array): rows.Response {
    const response = create(rows.ResponseSchema, { number: this.#number + 1n });
    try {
      const { number, content } = parsed("request", () => fromBinary(rows.RequestSchema, message));
      response.number = number;
      expect(number === this.#number + 1n, "number", String(this.#number + 1n), number);
      this.#number = number;
      switch (content.case) {
        case "make":
          response.content = { case: "made", value: this.#make(content.value) };
          break;
        case "reset":
          response.content = { case: "results", value: this.#reset(content.value) };
          break;
        case "step":
          response.content = { case: "results", value: this.#step(content.value) };
          break;
        default:
          throw mismatch("content", "make, reset or step", "none that this host knows");
      }
    } catch (error) {
      response.content = { case: "refusal", value: create(rows.RefusalSchema, { text: textOf(error) }) };
    }
    return response;
  }

  #make({ rowCount, kwargsJson, taskMethod, taskArgumentJson }: rows.Make): rows.Made {
    expect(this.#rows.length === 0, "make", "one request that makes rows", "a second one");
    expect(1 <= rowCount && rowCount <= MAX_ROWS, "row_count", `1 to ${String(MAX_ROWS)}`, rowCount);
    const argument = (): JsonValue => JSON.parse(taskArgumentJson) as JsonValue;
    const asked = {
      kwargs: objectOf("kwargs_json", kwargsJson),
      task: taskMethod === "" ? undefined : { method: taskMethod, argument: parsed("task_argument_json", argument) },
    };
    const environments = Array.from({ length: rowCount }, () => this.#host.make(asked));
    const [first] = environments as [Environment];
    const made = create(rows.MadeSchema, {
      observationSpace: create(SpaceSchema, first.observationSpace),
      actionSpace: create(SpaceSchema, first.actionSpace),
      maxEpisodeSteps: BigInt(first.maxEpisodeSteps ?? 0),
      isNondeterministic: first.isNondeterministic ?? false,
    });
    this.#observation = leavesOf(made.observationSpace);
    this.#action = leavesOf(made.actionSpace);
    this.#asked = asked;
    this.#rows = environments.map((environment) => ({ environment, runs: false }));
    return made;
  }

  #reset({ rows: indices, seeds, optionsJson }: rows.Reset): rows.Results {
    const selected = this.#select(indices);
    expect(seeds.length === indices.length, "seeds", `${String(indices.length)} seeds`, seeds.length);
    const options = objectOf("options_json", optionsJson);
    const results = this.#run(selected, (row, position) => {
      const start = this.#environmentOf(row).reset(seeds[position] ?? 0n, options);
      return { ...start, reward: 0, terminated: false, truncated: false };
    });
    return Object.assign(results, { rewards: [], terminated: [], truncated: [] });
  }

  #step({ rows: indices, actions }: rows.Step): rows.Results {
    const selected = indices.length > 0 ? this.#select(indices) : this.#select([...this.#rows.keys()]);
    const idle = selected.find(({ runs }) => !runs);
    if (idle !== undefined) {
      const got = `${String(this.#rows.indexOf(idle))}, which has to be reset`;
      throw mismatch("rows", "rows whose episodes go on", got);
    }
    const columns = actionColumns(actions, this.#action, selected.length);
    return this.#run(selected, (row, position) => this.#environmentOf(row).step(actionOf(columns, position)));
  }

  #run(selected: readonly Row[], act: (row: Row, position: number) => Step): rows.Results {
    const results = create(rows.ResultsSchema);
    const observations = new ObservationColumns(this.#observation, selected.length);
    const infos = new InfoColumns();
    selected.forEach((row, position) => {
      let step: Partial<Step> = {};
      try {
        step = act(row, position);
        observations.set(position, step.observation ?? []);
        infos.add(position, step.infos ?? {});
        row.runs = !step.terminated && !step.truncated;
      } catch (error) {
        Object.assign(row, FAILED);
        results.failures.push(create(rows.FailureSchema, { position, text: textOf(error) }));
      }
      results.rewards.push(step.reward ?? 0);
      results.terminated.push(step.terminated ?? false);
      results.truncated.push(step.truncated ?? false);
    });
    results.observations = observations.messages();
    results.infos = infos.messages(selected.length);
    return results;
  }

  #environmentOf(row: Row): Environment {
    return (row.environment ??= this.#host.make(this.#asked));
  }

  #select(indices: readonly number[]): Row[] {
    expect(this.#rows.length > 0, "content", "rows that have been made first", "none");
    return indices.map((index, i) => {
      const row = this.#rows[index];
      const isNext = (indices[i - 1] ?? -1) < index;
      expect(row !== undefined && isNext, "rows", `rising indices below ${String(this.#rows.length)}`, index);
      return row;
    });
  }
}

/** Return the object in a JSON text, which may be empty for none. */
function objectOf(field: string, text: string): JsonObject | undefined {
  const value = text === "" ? undefined : parsed(field, () => JSON.parse(text) as JsonValue);
  const isOther = value === null || Array.isArray(value) || (value !== undefined && typeof value !== "object");
  expect(!isOther, field, "a JSON object", text);
  return value;
}

function parsed<T>(field: string, parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    throw new Error(`${field}: ${textOf(error)}`, { cause: error });
  }
}
