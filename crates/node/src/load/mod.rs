//! `motley load`: servers with OpenAI's completions route, side by side under the same load.
//!
//! Every server gets the same prompts of random tokens, so that nothing is found in a cache, from
//! so many users at once, each of whom asks again when its answer is complete. Servers take turns
//! round by round; only ratios mean much on a machine that does other things too.

mod client;
mod report;

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use self::client::{Answer, Client};
use self::report::Report;
use crate::failure::{Failure, Kind};
use crate::terminal;

/// Arguments of `motley load`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Where servers answer; ratios are those of the first to each of the others
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
    /// Users at once, one measurement each
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_values_t = [1, 8, 32])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    users: Vec<u32>,
    /// Tokens of a prompt
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt_tokens: u32,
    /// Tokens of an answer
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    answer_tokens: u32,
    /// Rounds, in each of which every user asks every server
    #[arg(short, long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Answers per user and round
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Model to ask for [default: the first of each server]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Key of the servers' API
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Longest wait for one answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a server did in one round.
#[derive(Debug)]
struct Round {
    time: Duration,
    answers: Vec<Answer>,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let limit = Duration::from_secs(arguments.timeout);
    let client = |url: &String| {
        Client::new(url, arguments.model.as_deref(), arguments.api_key.as_deref(), limit)
            .map_err(|error| Failure::new(Kind::Failed, error))
    };
    let clients = arguments.urls.iter().map(client).collect::<Result<Vec<_>, _>>()?;
    let mut report = Report::new(&arguments.urls, arguments.prompt_tokens, arguments.answer_tokens);
    for users in &arguments.users {
        let mut rounds: Vec<Vec<Round>> = clients.iter().map(|_| Vec::new()).collect();
        for round in 0..arguments.rounds {
            for (client, rounds) in clients.iter().zip(&mut rounds) {
                rounds.push(run(client, *users, round, arguments)?);
            }
        }
        report.add(*users, &rounds);
    }
    if arguments.json {
        return Ok(terminal::print_json(&report.json())?);
    }
    Ok(terminal::print(&report.table())?)
}

/// All users of one server at once.
fn run(client: &Client, users: u32, round: u32, arguments: &Arguments) -> Result<Round, Failure> {
    let began = Instant::now();
    let answers: Result<Vec<Vec<Answer>>, Failure> = thread::scope(|scope| {
        let asked: Vec<_> = (0..users)
            .map(|user| scope.spawn(move || ask(client, u64::from(user), round, arguments)))
            .collect();
        let joined = asked.into_iter().map(|user| {
            user.join().unwrap_or_else(|_| {
                Err(Failure::new(Kind::Failed, anyhow::anyhow!("a user's thread panicked")))
            })
        });
        joined.collect()
    });
    Ok(Round { time: began.elapsed(), answers: answers?.into_iter().flatten().collect() })
}

/// One user's answers, one after the other.
fn ask(
    client: &Client,
    user: u64,
    round: u32,
    arguments: &Arguments,
) -> Result<Vec<Answer>, Failure> {
    let repetitions = 0..u64::from(arguments.repeat);
    repetitions
        .map(|repetition| {
            // The same prompts for every server, and none of them twice.
            let seed = (u64::from(round) << 40) | (repetition << 20) | user;
            client
                .complete(seed, arguments.prompt_tokens, arguments.answer_tokens)
                .map_err(|error| Failure::new(Kind::Failed, error))
        })
        .collect()
}
