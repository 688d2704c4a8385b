//! The two engines under one face: rows of tokens in, logits out.

use std::time::Duration;

use motley_engine::{Engine, Entering, Row, Step, Wanted};
use motley_ggml::{ReferenceContext, ReferenceRow, Token};

/// Something that can be measured.
pub(super) trait Subject {
    /// Forgets all sequences.
    fn clear(&mut self);
    /// Called after each timed run.
    fn after_run(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
    /// Runs rows `(sequence, position)` and makes logits of the last row, or of every row.
    fn step(&mut self, rows: &[(usize, usize)], every_row: bool) -> anyhow::Result<()>;
}

/// This project's engine.
#[derive(Debug)]
pub(super) struct Ours {
    pub(super) engine: Engine,
    rows: Vec<Row>,
    tokens: Vec<Token>,
    wanted: Vec<usize>,
    logits: Vec<f32>,
    /// Bytes per second of the disk beside each run, where weights are streamed.
    pub(super) disk_rates: Vec<f64>,
    /// Whether weights are left unread, to time computation alone.
    pub(super) without_reading: bool,
}

/// How long the disk alone is measured after each run.
const DISK_TIME: Duration = Duration::from_millis(500);

impl Ours {
    pub(super) fn new(engine: Engine) -> Self {
        Self {
            engine,
            rows: Vec::new(),
            tokens: Vec::new(),
            wanted: Vec::new(),
            logits: Vec::new(),
            disk_rates: Vec::new(),
            without_reading: false,
        }
    }
}

impl Subject for Ours {
    fn clear(&mut self) {
        for slot in 0..self.engine.slots() {
            self.engine.clear(slot);
        }
    }

    fn after_run(&mut self) -> anyhow::Result<()> {
        let rate = self.engine.measure_read_rate(DISK_TIME)?;
        self.disk_rates.extend(rate.map(|rate| rate.bytes_per_s()));
        Ok(())
    }

    fn step(&mut self, rows: &[(usize, usize)], every_row: bool) -> anyhow::Result<()> {
        let vocabulary_size = self.engine.hyper().vocabulary_size;
        self.rows.clear();
        self.tokens.clear();
        self.wanted.clear();
        for (slot, position) in rows.iter().copied() {
            self.rows.push(Row { slot, position });
            self.tokens.push(token_at(slot, position, vocabulary_size));
        }
        self.wanted.extend(if every_row { 0..rows.len() } else { rows.len() - 1..rows.len() });
        let step = Step {
            layers: 0..self.engine.hyper().block_count,
            rows: &self.rows,
            entering: Entering::Tokens(&self.tokens),
            wanted: Wanted::Logits(&self.wanted),
        };
        if self.without_reading {
            return Ok(self.engine.run_without_reading(&step, &mut self.logits)?);
        }
        Ok(self.engine.run(&step, &mut self.logits)?)
    }
}

/// llama.cpp's library.
#[derive(Debug)]
pub(super) struct Theirs<'m> {
    context: ReferenceContext<'m>,
    vocabulary_size: usize,
    rows: Vec<ReferenceRow>,
}

impl<'m> Theirs<'m> {
    pub(super) fn new(context: ReferenceContext<'m>, vocabulary_size: usize) -> Self {
        Self { context, vocabulary_size, rows: Vec::new() }
    }
}

impl Subject for Theirs<'_> {
    fn clear(&mut self) {
        self.context.clear();
    }

    fn step(&mut self, rows: &[(usize, usize)], every_row: bool) -> anyhow::Result<()> {
        self.rows.clear();
        for (index, (sequence, position)) in rows.iter().copied().enumerate() {
            self.rows.push(ReferenceRow {
                token: token_at(sequence, position, self.vocabulary_size),
                position: u32::try_from(position)?,
                sequence: u32::try_from(sequence)?,
                logits: every_row || index + 1 == rows.len(),
            });
        }
        Ok(self.context.decode(&self.rows)?)
    }
}

/// A token that looks random but is the same for both engines.
pub(super) fn token_at(sequence: usize, position: usize, vocabulary_size: usize) -> Token {
    let mixed = (sequence * 7919 + position * 104_729 + 17) % vocabulary_size;
    Token::try_from(mixed).unwrap_or(0)
}
