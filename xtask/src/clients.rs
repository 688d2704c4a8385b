//! Clients that people use, run against `motley serve`: the packages of Python and Node, and a
//! tool that tries everything our OpenAPI file allows; and the chat page, without a browser.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::cache::Workplace;
use crate::models::SMOLLM2;
use crate::process::{self, Job, Service};
use crate::steps::Outcome;

/// How long the server may take to load the model.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long one client's checks may take.
const CLIENT_LIMIT: Duration = Duration::from_secs(10 * 60);

/// Requests that schemathesis draws per route, beside those that cover each field.
const EXAMPLES: &str = "8";

/// Tokens of a slot for the clients, whose prompts are real.
const CONTEXT: &str = "2048";

/// Tokens of a slot for schemathesis, which lets answers be as long as they can.
const SHORT_CONTEXT: &str = "128";

/// Installs the clients, starts a server and lets each of them at it.
pub(crate) fn run(workplace: &Workplace) -> Result<Outcome> {
    let folder = workplace.root.join("clients");
    let python = python_clients(workplace, &folder)?;
    let node = node_clients(workplace, &folder)?;
    let server = Server::start(workplace, CONTEXT)?;
    let job = |label| Job { label, limit: CLIENT_LIMIT, hint: "the client's output tells why" };
    for script in ["openai_python.py", "others.py"] {
        let mut client = server.client(&python.join("python"));
        client.arg(folder.join(script));
        process::show(client, &job(script))?;
    }
    if process::succeeds("node", &["--version"]) {
        let mut page = server.client(Path::new("node"));
        page.arg(folder.join("page.mjs"));
        process::show(page, &job("page.mjs"))?;
    }
    if let Some(node) = node {
        let script = node.join("openai_node.mjs");
        fs::copy(folder.join("openai_node.mjs"), &script)?;
        let mut client = server.client(Path::new("node"));
        client.arg(script);
        process::show(client, &job("openai_node.mjs"))?;
    } else {
        eprintln!("   there is no npm here: the Node client is left out");
    }
    drop(server);
    let server = Server::start(workplace, SHORT_CONTEXT)?;
    let mut schemathesis = server.client(&python.join("schemathesis"));
    schemathesis.arg("run").arg(workplace.root.join("crates/gateway/openapi.json"));
    schemathesis.args(["--url", &server.url, "--max-examples", EXAMPLES, "--seed", "1"]);
    schemathesis.args(["--checks", "not_a_server_error,response_schema_conformance"]);
    schemathesis.args(["--phases", "coverage,fuzzing", "--request-timeout", "60", "--no-color"]);
    let log = workplace.logs.join("schemathesis.log");
    process::log(schemathesis, &log, &job("schemathesis"), String::new)?;
    Ok(Outcome::Passed)
}

/// An environment with the Python clients, made anew when the list of them changes.
fn python_clients(workplace: &Workplace, folder: &Path) -> Result<PathBuf> {
    let wanted = fs::read_to_string(folder.join("requirements.txt"))?;
    let place = workplace.tools.join("clients-python");
    let (marker, programs) = (place.join("installed"), place.join("bin"));
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Ok(programs);
    }
    let hint = "the package index must be reachable; python3-venv must be installed";
    let job = |label| Job { label, limit: CLIENT_LIMIT, hint };
    let log = workplace.logs.join("clients.log");
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(&place);
    process::log(make, &log, &job("making a place for Python clients"), String::new)?;
    let mut install = Command::new(programs.join("pip"));
    install.args(["install", "--quiet", "--disable-pip-version-check", "-r"]);
    install.arg(folder.join("requirements.txt"));
    process::log(install, &log, &job("installing Python clients"), String::new)?;
    fs::write(marker, wanted)?;
    Ok(programs)
}

/// A folder with the Node client; nothing where there is no npm.
fn node_clients(workplace: &Workplace, folder: &Path) -> Result<Option<PathBuf>> {
    if !process::succeeds("npm", &["--version"]) {
        return Ok(None);
    }
    let wanted = fs::read_to_string(folder.join("package.json"))?;
    let place = workplace.tools.join("clients-node");
    fs::create_dir_all(&place)?;
    let marker = place.join("installed");
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Ok(Some(place));
    }
    fs::write(place.join("package.json"), &wanted)?;
    let mut install = Command::new("npm");
    install.args(["install", "--silent", "--no-audit", "--no-fund"]).current_dir(&place);
    let hint = "the npm registry must be reachable";
    let job = Job { label: "installing the Node client", limit: CLIENT_LIMIT, hint };
    process::log(install, &workplace.logs.join("clients.log"), &job, String::new)?;
    fs::write(marker, wanted)?;
    Ok(Some(place))
}

/// A `motley serve` that ends with this value.
struct Server {
    url: String,
    process: Service,
}

impl Server {
    fn start(workplace: &Workplace, context: &str) -> Result<Self> {
        let address = process::free_address()?;
        let mut motley = Command::new(workplace.target.join("release").join("motley"));
        motley.arg("serve").arg(SMOLLM2.path(workplace));
        motley.args(["-np", "8", "-c", context, "-t", "1", "--port", &address.port().to_string()]);
        let process = Service::start(motley, workplace.logs.join("serve.log"))?;
        let mut server = Self { url: format!("http://{address}"), process };
        server.wait(address)?;
        Ok(server)
    }

    fn wait(&mut self, address: SocketAddr) -> Result<()> {
        let until = Instant::now() + START_LIMIT;
        // The port is bound before the model is loaded; a request waits for it.
        while TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_err() {
            self.process.check().context("motley serve")?;
            ensure!(Instant::now() < until, "motley serve is not ready after {START_LIMIT:?}");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// A client that finds the server in its environment.
    fn client(&self, program: &Path) -> Command {
        let mut client = Command::new(program);
        client.env("MOTLEY_URL", &self.url);
        client
    }
}
