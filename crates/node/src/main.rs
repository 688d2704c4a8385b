//! The program `motley`: command line, files, wiring.
//!
//! Holds everything that touches the world for a user: arguments, the terminal, memory limits, the
//! thread that drives the engine. It must not know kernels, file formats or graphs.
//! Start reading at `execute`; one command is one file, and only `main` ends the process.
#![expect(
    clippy::disallowed_methods,
    reason = "the program reads clocks, files and the environment, and starts the engine thread"
)]

mod arguments;
mod background;
mod bench;
mod blocks;
mod cluster;
mod completions;
mod config;
mod discovery;
mod doctor;
mod driver;
mod failure;
mod fitting;
mod gpus;
mod identity;
mod init;
mod interrupt;
mod join;
mod key;
mod list;
mod load;
mod loading;
mod make_model;
mod memory;
mod nodes;
mod plan;
mod profile;
mod prompt;
mod ps;
mod pull;
mod rm;
mod run;
mod running;
mod serve;
mod session;
mod short_options;
mod show;
#[cfg(test)]
mod small_model;
mod stage;
mod status;
mod stop;
mod store;
mod terminal;
mod token;
mod tokenize;
mod transport;
mod version;
mod whole_file;

use std::process::ExitCode;
use std::time::Instant;

use arguments::{Command, LineError};
use failure::{Failure, Kind};

fn main() -> ExitCode {
    let started = Instant::now();
    let command = match arguments::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(LineError::Config(error)) => {
            let hint = error.hint();
            let failure = Failure::new(Kind::Usage, error).hint(hint);
            terminal::complain(&failure.report());
            return exit_code(failure.kind);
        }
        Err(LineError::Words(error)) => {
            // Help and version are "errors" of the parser that go to stdout and succeed.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match execute(command, started) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            if failure.kind != Kind::Interrupted {
                terminal::complain(&failure.report());
            }
            exit_code(failure.kind)
        }
    }
}

fn execute(command: Command, started: Instant) -> Result<(), Failure> {
    match command {
        Command::Welcome => Ok(terminal::print(arguments::WELCOME)?),
        Command::Run(arguments) => run::execute(*arguments, started),
        Command::Serve(arguments) => serve::execute(*arguments, started),
        Command::Pull(arguments) => pull::execute(&arguments),
        Command::List(arguments) => list::execute(&arguments),
        Command::Rm(arguments) => rm::execute(&arguments),
        Command::Ps(arguments) => ps::execute(&arguments),
        Command::Stop(arguments) => stop::execute(&arguments),
        Command::Key(arguments) => key::execute(&arguments),
        Command::Join(arguments) => join::execute(&arguments),
        Command::Nodes(arguments) => nodes::execute(&arguments),
        Command::Status(arguments) => status::execute(&arguments),
        Command::Doctor(arguments) => doctor::execute(&arguments),
        Command::Init(arguments) => init::execute(&arguments),
        Command::Token(arguments) => token::execute(&arguments),
        Command::Show(arguments) => show::execute(&arguments),
        Command::Plan(arguments) => plan::execute(&arguments),
        Command::Profile(arguments) => profile::execute(&arguments),
        Command::Bench(arguments) => bench::execute(&arguments),
        Command::Load(arguments) => load::execute(&arguments),
        Command::Tokenize(arguments) => tokenize::execute(&arguments),
        Command::MakeModel(arguments) => make_model::execute(&arguments),
        Command::Config(arguments) => config::execute(&arguments),
        Command::Completions(arguments) => completions::execute(&arguments),
        Command::Version(arguments) => version::execute(&arguments),
    }
}

fn exit_code(kind: Kind) -> ExitCode {
    ExitCode::from(match kind {
        Kind::Failed => 1,
        Kind::Usage => 2,
        Kind::NotFound => 3,
        Kind::Refused => 4,
        Kind::Interrupted => 130,
    })
}
