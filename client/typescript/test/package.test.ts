import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

interface Package {
  readonly scripts: Readonly<Record<string, string>>;
  readonly exports: Readonly<Record<string, string | Readonly<Record<string, string>>>>;
}

const root = new URL("../../", import.meta.url);
const readme = readFileSync(new URL("README.md", root), "utf8");
const { scripts, exports } = JSON.parse(readFileSync(new URL("package.json", root), "utf8")) as Package;

test("test_install_runs_no_scripts", () => {
  const ran = ["preinstall", "install", "postinstall", "prepublish", "preprepare", "prepare", "postprepare"];
  assert.deepEqual(
    ran.filter((name) => name in scripts),
    [],
  );
});

test("test_exported_files_exist", () => {
  const files = Object.values(exports).flatMap((entry) => (typeof entry === "string" ? [entry] : Object.values(entry)));
  assert.ok(files.length > 0);
  assert.deepEqual(
    files.filter((file) => !existsSync(new URL(file, root))),
    [],
  );
});

test("test_links_of_the_readme_lead_to_the_repository_from_anywhere", () => {
  const links = [...readme.matchAll(/\](?:\(|: )([^\s)]*)/g)].map(([, link = ""]) => link);
  assert.ok(links.length > 0);
  for (const link of links) {
    const path = /^https:\/\/github\.com\/rollserve\/rollserve\/(?:blob|tree)\/main\/(.*)$/.exec(link)?.[1];
    assert.ok(path !== undefined && existsSync(new URL(`../../${path}`, root)), link);
  }
});

test("test_examples_of_the_readme_compile_with_its_settings_and_with_strict_ones", () => {
  const folder = mkdtempSync(join(tmpdir(), "rollserve-"));
  try {
    const blocks = (language: string): string[] =>
      [...readme.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, "gms"))].map(([, text = ""]) => text);
    const examples = blocks("ts").map((text, index) => [join(folder, `example${String(index)}`), text] as const);
    assert.equal(examples.length, 2);
    writeFileSync(join(folder, "package.json"), '{ "type": "module" }');
    writeFileSync(join(folder, "tsconfig.json"), blocks("json")[0] ?? assert.fail("no settings"));
    for (const [path, text] of examples) {
      writeFileSync(`${path}.ts`, text);
    }
    mkdirSync(join(folder, "node_modules"));
    symlinkSync(fileURLToPath(root), join(folder, "node_modules", "rollserve"));
    symlinkSync(fileURLToPath(new URL("node_modules/@types", root)), join(folder, "node_modules", "@types"));
    const tsc = fileURLToPath(new URL("node_modules/typescript/bin/tsc", root));
    const strict = ["--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess", "--skipLibCheck", "false"];
    execFileSync(process.execPath, [tsc, "--project", folder, ...strict], { encoding: "utf8" });
    for (const [path] of examples) {
      execFileSync(process.execPath, ["--check", `${path}.js`], { encoding: "utf8" }); // of any Node from 20
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});
