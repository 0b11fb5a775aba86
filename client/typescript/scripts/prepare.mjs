// Builds the package, which `npm install` of this folder runs. An install from another folder links to this one without
// installing its dependencies, so that they are installed here first.

import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";

const folder = dirname(dirname(fileURLToPath(import.meta.url)));
const compiler = `${folder}/node_modules/typescript/bin/tsc`;

// npm tells its scripts about the outer project, which is not the one to install.
const environment = Object.fromEntries(
  Object.entries(process.env).filter(([name]) => !/^npm_(?!config_cache$)/i.test(name)),
);
const options = { cwd: folder, stdio: "inherit", env: environment };

if (!existsSync(compiler)) {
  execFileSync("npm", ["ci", "--ignore-scripts"], { ...options, shell: process.platform === "win32" });
}
execFileSync(process.execPath, [compiler, "--project", "tsconfig.json"], options);
