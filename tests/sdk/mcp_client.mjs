// A client of MCP with one of the official TypeScript SDKs: plays a scenario of the conformance suite, or tells all that it
// sees of a server, as JSON.
//
//   mcp_client.mjs PACKAGES v1|v2|v2-auto scenario [RECORDER…] URL    the suite names the scenario in its variable
//   mcp_client.mjs PACKAGES v1|v2|v2-auto everything URL|COMMAND…     `v2-auto` asks for the newest protocol first
//
// A RECORDER is a command that is started with the URL as its last word, and speaks in its place.
import { createRequire } from "node:module";
import { join } from "node:path";

const [packages, sdk, what, ...words] = process.argv.slice(2);
const resolved = createRequire(join(packages, "client.js"));
const load = (name) => resolved(name);

const { Client, StdioClientTransport, StreamableHTTPClientTransport, elicitation } = sdk === "v1" ? v1() : v2();

function v1() {
  const at = "@modelcontextprotocol/sdk";
  return {
    ...load(`${at}/client/index.js`),
    ...load(`${at}/client/stdio.js`),
    ...load(`${at}/client/streamableHttp.js`),
    elicitation: load(`${at}/types.js`).ElicitRequestSchema,
  };
}

function v2() {
  return { ...load("@modelcontextprotocol/client"), ...load("@modelcontextprotocol/client/stdio"), elicitation: "elicitation/create" };
}

function transport() {
  if (words.length === 1) return new StreamableHTTPClientTransport(new URL(words[0]));
  return new StdioClientTransport({ command: words[0], args: words.slice(1), env: { ...process.env }, stderr: "inherit" });
}

const capabilities = { elicitation: { form: { applyDefaults: true } } };
const negotiation = sdk === "v2-auto" ? { versionNegotiation: { mode: "auto" } } : {};
const client = new Client({ name: "outlast-test", version: "1" }, { capabilities, ...negotiation });
client.setRequestHandler(elicitation, async () => ({ action: "accept", content: {} }));
await client.connect(transport());
if (what === "everything") await everything();
else await scenario(process.env.MCP_CONFORMANCE_SCENARIO);
await client.close();

async function scenario(name) {
  const { tools } = await client.listTools();
  for (const call of calls(name, tools)) await client.callTool(call);
  if (name !== "http-standard-headers") return;
  for (const { uri } of (await client.listResources()).resources) await client.readResource({ uri });
  for (const prompt of (await client.listPrompts()).prompts) await client.getPrompt({ name: prompt.name });
}

// The calls that a scenario wants of a client; most name none, and each of the server's tools is called.
function calls(name, tools) {
  if (name === "http-custom-headers") return JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT).toolCalls;
  if (name === "initialize" || name === "json-schema-ref-no-deref") return [];
  const args = name === "tools_call" ? { a: 5, b: 3 } : {};
  return tools.map((tool) => ({ name: tool.name, arguments: args }));
}

async function everything() {
  const told = {};
  const say = async (name, asked) => {
    try {
      told[name] = await asked();
    } catch (e) {
      told[name] = { code: e.code, message: e.message };
    }
  };
  await say("server", () => client.getServerVersion());
  await say("capabilities", () => client.getServerCapabilities());
  await say("instructions", () => client.getInstructions());
  await say("tools", () => client.listTools());
  const call = (name, args, more) => () => client.callTool({ name, arguments: args }, ...(more ?? []));
  await say("echo", call("echo", { message: "well?" }));
  await say("again", call("echo", { message: "well?" }));
  await say("sum", call("get-sum", { a: 2, b: 3 }));
  await say("bad", call("get-sum", { a: "x" }));
  await say("image", call("get-tiny-image", {}));
  await say("annotated", call("get-annotated-message", { messageType: "error", includeImage: true }));
  await say("structured", call("get-structured-content", { location: "Chicago" }));
  await say("links", call("get-resource-links", { count: 3 }));
  await say("none", call("no-such-tool", {}));
  await say("prompts", () => client.listPrompts());
  for (const prompt of ["simple-prompt", "no-such-prompt"]) await say(prompt, () => client.getPrompt({ name: prompt }));
  await say("args-prompt", () => client.getPrompt({ name: "args-prompt", arguments: { city: "Bern" } }));
  await say("completion", () =>
    client.complete({ ref: { type: "ref/prompt", name: "completable-prompt" }, argument: { name: "department", value: "E" } }),
  );
  await say("resources", () => client.listResources());
  await say("templates", () => client.listResourceTemplates());
  await say("resource", () => client.readResource({ uri: told.resources.resources[0].uri }));
  await say("nowhere", () => client.readResource({ uri: "demo://nowhere" }));
  const progress = [];
  const onprogress = ({ progress: done, total }) => progress.push([done, total]);
  const arguments_ = { duration: 1, steps: 2 };
  const long = { name: "trigger-long-running-operation", arguments: arguments_ };
  await say("long", () => (sdk === "v1" ? client.callTool(long, undefined, { onprogress }) : client.callTool(long, { onprogress })));
  // The last notice comes with the answer: an SDK may drop it.
  await say("progress", async () => progress.slice(0, 1));
  await say("ping", () => client.ping());
  console.log(JSON.stringify(told));
}
