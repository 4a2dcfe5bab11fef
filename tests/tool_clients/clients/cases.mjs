// Runs cases one after another and prints a line of JSON for each: its name, how it went, and why it failed.

export const asked = { url: process.env.TOOL_CLIENTS_URL, model: process.env.TOOL_CLIENTS_MODEL };

export async function run(cases) {
  for (const [name, check] of Object.entries(cases)) {
    let outcome = "passed", reason = "";
    try {
      await check();
    } catch (error) {
      [outcome, reason] = ["failed", `${error.name}: ${error.message}`];
    }
    console.log(JSON.stringify({ name, outcome, reason }));
  }
}
