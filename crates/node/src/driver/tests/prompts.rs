//! What a driver tells of a prompt itself: the mean of its states, and how probable its tokens were.

use std::sync::mpsc::{Sender, channel};

use motley_engine::{Sampled, TokenLogProbabilities};

use super::super::{AnswerError, Ended, Listener, Prefill, Verdict};
use super::*;

/// Everything told of one request.
#[derive(Debug, Default)]
struct Told {
    scores: Vec<TokenLogProbabilities>,
    mean: Option<Vec<f32>>,
    answer: Vec<Token>,
    prefilled: usize,
}

/// Collects what is told and sends it at the end.
struct Collector {
    told: Told,
    done: Sender<(Told, Result<Ended, AnswerError>)>,
}

impl Listener for Collector {
    fn is_gone(&self) -> bool {
        false
    }

    fn has_room(&self) -> bool {
        true
    }

    fn scored(&mut self, probabilities: &TokenLogProbabilities) {
        assert_eq!(self.told.prefilled, 0, "scores come before the answer begins");
        self.told.scores.push(probabilities.clone());
    }

    fn embedded(&mut self, mean: Vec<f32>) {
        assert!(self.told.mean.replace(mean).is_none(), "one mean");
    }

    fn prefilled(&mut self, _prefill: &Prefill) {
        self.told.prefilled += 1;
    }

    fn token(&mut self, sampled: &Sampled) -> Verdict {
        self.told.answer.push(sampled.token);
        Verdict::GoOn
    }

    fn ended(self: Box<Self>, outcome: Result<Ended, AnswerError>) {
        self.done.send((self.told, outcome)).expect("the test waits");
    }
}

type Pending = std::sync::mpsc::Receiver<(Told, Result<Ended, AnswerError>)>;

fn ask(fixture: &Fixture, prompt: &[Token], purpose: Purpose, answer_tokens_max: usize) -> Pending {
    let (done, pending) = channel();
    let options = SamplingOptions { ignore_eos: true, ..SamplingOptions::greedy() };
    let submitted = fixture.driver.submit(Request {
        id: "test".to_owned(),
        caller: CallerKey::default(),
        priority: 0,
        prompt: prompt.to_vec(),
        purpose,
        parameters: SamplingParameters::new(options, fixture.logits).unwrap(),
        constrainer: None,
        answer_tokens_max,
        listener: Box::new(Collector { told: Told::default(), done }),
    });
    submitted.unwrap();
    pending
}

fn wait(pending: &Pending) -> (Told, Ended) {
    let (told, outcome) = pending.recv_timeout(PATIENCE).expect("an end in time");
    assert_eq!(told.prefilled, 1);
    (told, outcome.unwrap())
}

/// llama.cpp's rows of a prompt, computed in the same pieces: logits, or final hidden states.
fn reference_rows(fixture: &Fixture, prompt: &[Token], states: bool) -> Vec<Vec<f32>> {
    let model = ReferenceModel::load(fixture.model.path(), false).unwrap();
    let options = ReferenceOptions {
        context_tokens: CONTEXT_TOKENS as u32,
        sequences: 1,
        batch_rows: CONTEXT_TOKENS as u32,
        cache_elements: [ElementType::F16; 2],
        batch_threads: None,
        threads: THREADS,
    };
    let mut context = ReferenceContext::new(&model, options).unwrap();
    context.set_gives_states(states);
    let row = |(token, position): (&Token, u32)| ReferenceRow {
        token: *token,
        position,
        sequence: 0,
        logits: true,
    };
    let rows: Vec<_> = prompt.iter().zip(0..).map(row).collect();
    let mut found = Vec::new();
    for piece in rows.chunks(BATCH_ROWS) {
        context.decode(piece).unwrap();
        found.extend((0..piece.len()).map(|index| {
            if states { context.state(index) } else { context.logits(index) }.to_vec()
        }));
    }
    found
}

/// A prompt longer than one chunk of those whose rows are all wanted.
fn long_prompt(fixture: &Fixture) -> Vec<Token> {
    let tokens = fixture.tokens(&PROMPTS.join(" ").repeat(2));
    assert!(tokens.len() > 2 * 64 && tokens.len() < CONTEXT_TOKENS, "{}", tokens.len());
    tokens
}

#[test]
fn an_embedding_is_the_mean_of_llama_cpps_states() {
    let Some(fixture) = Fixture::load(3) else { return };
    let prompt = long_prompt(&fixture);
    // Answers run in the same micro-batches and are not changed by it.
    let beside = fixture.submit(fixture.tokens(PROMPTS[1]), 8).unwrap();
    let pending = ask(&fixture, &prompt, Purpose::Embedding, 0);
    let (told, ended) = wait(&pending);
    assert_eq!((ended.tokens, told.answer.len()), (0, 0));
    let alone = hear(&fixture.submit(fixture.tokens(PROMPTS[1]), 8).unwrap());
    assert_eq!(hear(&beside).tokens, alone.tokens);

    let states = reference_rows(&fixture, &prompt, true);
    let mean = told.mean.expect("an embedding");
    assert_eq!(mean.len(), states[0].len());
    let length = |vector: &[f32]| vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let expected: Vec<f32> = (0..mean.len())
        .map(|index| states.iter().map(|state| state[index]).sum::<f32>() / states.len() as f32)
        .collect();
    let apart: Vec<f32> = mean.iter().zip(&expected).map(|(a, b)| a - b).collect();
    let distance = length(&apart) / length(&expected);
    assert!(distance < 2e-3, "the vectors are {distance} of their length apart");
}

#[test]
fn a_prompt_is_scored_as_by_llama_cpp() {
    let Some(fixture) = Fixture::load(2) else { return };
    let prompt = long_prompt(&fixture);
    // Even of a prompt that is in the slot already all rows are computed.
    hear(&fixture.submit(prompt.clone(), 1).unwrap());
    let (told, _) = wait(&ask(&fixture, &prompt, Purpose::AnswerAndScores { top: 2 }, 3));
    assert_eq!(told.answer, reference_greedy(&fixture, &prompt, 3));
    let (alone, ended) = wait(&ask(&fixture, &prompt, Purpose::AnswerAndScores { top: 0 }, 0));
    assert_eq!((ended.tokens, alone.scores.len()), (0, prompt.len() - 1));

    let rows = reference_rows(&fixture, &prompt, false);
    assert_eq!(told.scores.len(), prompt.len() - 1);
    let mut apart = Vec::new();
    for ((logits, token), score) in rows.iter().zip(&prompt[1..]).zip(&told.scores) {
        assert_eq!(score.chosen().token, *token);
        assert_eq!(score.top().len(), 2);
        let greatest = logits.iter().copied().fold(f32::MIN, f32::max);
        let total: f64 = logits.iter().map(|logit| f64::from(logit - greatest).exp()).sum();
        let expected = f64::from(logits[*token as usize] - greatest) - total.ln();
        let found = f64::from(score.chosen().log_probability);
        apart.push((found - expected).abs());
    }
    let most = apart.iter().copied().fold(0.0, f64::max);
    assert!(most < 0.05, "scores are up to {most} apart");
}
